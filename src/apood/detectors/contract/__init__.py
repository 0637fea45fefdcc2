"""The contract of all detectors.

base: the base class `Detector` with fit, score, calibrate, decide and save, and the checks of the data
registry: the classes of the methods by name, those of other distributions included
artefact: detectors as folders of JSON and safetensors files
"""
