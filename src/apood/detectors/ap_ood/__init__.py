"""AP-OOD: the detector, its recipes, start, loss, training, scoring and health checks."""
