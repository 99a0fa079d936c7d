"""Benchmarks with the flags and the table of nccl-tests: `hybridengine bench NAME`.

They measure and verify; they assert nothing. A benchmark is one file with a record (see record.py);
the harness does the rest. The package is installed as hybridengine._bench.
"""
