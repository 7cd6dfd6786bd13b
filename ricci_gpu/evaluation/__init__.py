"""How good rankings are: metrics over judgements.

What belongs here: functions of rankings and judgements. Nothing here chooses or runs a stage.
"""
