"""All-reduce and its kin, plain and masked."""
