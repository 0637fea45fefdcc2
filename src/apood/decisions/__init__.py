"""From scores to decisions: thresholds, conformal p-values, selection of many."""
