"""From scores to decisions: thresholds, p-values and the selection of many inputs, all in `conformal`."""
