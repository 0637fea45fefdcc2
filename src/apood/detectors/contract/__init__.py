"""The contract of all detectors.

base: the base class `Detector` with fit, score, calibrate, decide and save
data_checks: checks of the data that a detector is given
registry: the classes of the methods by name, including those of other distributions
artefact: detectors as folders of JSON and safetensors files
held_out: how a detector describes and scores sequences that it has not seen
refinable: detectors that can learn from far more sequences than they were trained on
renamed: constructor arguments that had another name before

What a fusion needs of its members:
unseen: held-out sequences, and scores of sequences that a member has not seen
weighing: the weights of the members, by how they agree and how well they tell AUX sequences
fused_scale: the scale of the log distances of a member
fused_explanation: explanations of the members on the scale of the fusion
fused_warnings: warnings of the members, each issued once
"""
