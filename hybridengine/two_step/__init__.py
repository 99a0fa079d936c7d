"""An optimizer's update and the reshard in one movement."""
