"""The contract of all detectors: base class, registry, data checks, artefacts."""
