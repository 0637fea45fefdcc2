"""The detector contract, one file a method family, the registry, artefacts."""
