"""Runs a program that nobody trusts, in a process with nothing to break or to read.

    worker (knows the answers) --program, input--> warden (knows no answers)
           <--output, how it ended--                 | fork
                                                     supervisor: namespaces, mounts
                                                     | fork
                                                     first process of the namespace
                                                     | fork, limits, filters, exec
                                                     python: the program

The warden is started before the worker gives up starting processes. It kills a program
at its limits and reports only bytes and an exit code; what they are worth is decided in
the worker.
"""
