"""Stacks of ranks that use torch.compile."""

COMPILES = """Current thread 0x1 (most recent call first):
  File "/env/lib/python3.12/site-packages/torch/_inductor/async_compile.py", line 1 in wait
  File "/env/lib/python3.12/site-packages/torch/_dynamo/convert_frame.py", line 2316 in __call__
  File "/env/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", line 1024 in compile_wrapper
  File "/home/me/train.py", line 75 in <module>
"""
RUNS_COMPILED = """Current thread 0x1 (most recent call first):
  File "/tmp/torchinductor_me/ab/cab.py", line 9 in call
  File "/env/lib/python3.12/site-packages/torch/_inductor/output_code.py", line 6 in __call__
  File "/env/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py", line 1024 in compile_wrapper
  File "/home/me/train.py", line 75 in <module>
"""
