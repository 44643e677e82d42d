"""`ttj`, also `kubectl ttj`."""
