"""What is known for all inputs: confirmed by CrossHair, or proved with z3.

Two tools, and two words. `arithmetic` and `steps` are Python functions that CrossHair executes
with symbolic integers: *confirmed over all paths* means for all integers, within the shape that
the function fixes. `operations` is a model of an allocator in first-order logic, of any number
of blocks and sequences, about which z3 *proves* the laws from the axioms that `world` states.
Each obligation has broken twins that the same tool must refute. `kvspec symbolic` runs all.
"""
