"""What a run costs on real TPUs, by the TPU compiler, without having one.

programs -> compiled text -> hlo -> costs -> roofline -> report
                 memory_analysis -> fit (what else would fit)
"""
