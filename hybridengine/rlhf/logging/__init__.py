"""Where the numbers of a run go: any number of sinks behind one interface.

`open_sinks(config, folder)` opens those that `trainer.loggers` names. A new one is a class here
and a line in the table of sinks.py.
"""

from hybridengine.rlhf.logging.screen import busy, open_screen
from hybridengine.rlhf.logging.sinks import SINKS, Sink, Sinks, open_sinks

__all__ = ["SINKS", "Sink", "Sinks", "busy", "open_screen", "open_sinks"]
