"""From a Hugging Face script to a verdict: python judge_hugging_face.py CHECKPOINT"""
import sys

import lockstep
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
with lockstep.capture(model, "run.h5"):
    model.generate(**tokenizer("To be, or not to be", return_tensors="pt"), max_new_tokens=8)
print(lockstep.judge("run.h5", sys.argv[1]))
