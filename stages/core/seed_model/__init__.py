"""The recipe of the shipped seed model: programs, tokenizer, pretraining and its probe.

Imports torch; nothing of the loop imports it but the probe.
"""
