"""The commands on a Ray cluster: inputs in parts, workers that encode and score, outputs that survive their death.

An input is divided into parts, and a part into units of some hundred documents (`units`). Both depend on the input
alone. A worker (`worker`, `scoring`, `embedding`, `measuring`) holds an encoder and a detector; it reads, encodes and
scores unit by unit, and commits each as one file (`shards`). `tries` remembers which units killed a worker. `job` plans
and finishes, `engine` is all that knows Ray.
`fitting` learns from a sample (`sampling`) and from statistics and vectors of everything (`measuring`).
"""
