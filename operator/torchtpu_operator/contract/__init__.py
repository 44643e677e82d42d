"""What both sides of the pod wall agree on: the operator writes it into pods, the runtime reads it there, and back.

Standard library only, and no decisions: names, numbers and the records that travel.
"""
