"""choosing: which environment answers which sample, as the config says."""

from __future__ import annotations

from collections.abc import Mapping

from hybridengine.rlhf.config.records import EnvironmentRecord
from hybridengine.rlhf.data.samples import Sample
from hybridengine.rlhf.environments.protocol import Environment
from hybridengine.rlhf.environments.registry import environment


class Environments:
    """Those of a run, by label. Throws UsageError on a name or an option that there is not."""

    def __init__(self, records: Mapping[str, EnvironmentRecord]) -> None:
        self._records = list(records.values())
        for record in self._records:
            self._make(record)

    def __bool__(self) -> bool:
        return bool(self._records)

    def of(self, sample: Sample) -> tuple[Environment | None, int]:
        """A new environment for an episode of `sample`, of the first record that is for its
        data_source, and the most turns; None and 1 where no record is."""
        for record in self._records:
            if not record.data_sources or sample.data_source in record.data_sources:
                return self._make(record), record.max_turns
        return None, 1

    def _make(self, record: EnvironmentRecord) -> Environment:
        return environment.bind(record.use, **record.options)()
