"""Trains with TRL, without Echelon's library: alone_trl.py STEPS PACE_S."""

import sys
import time
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])
WORDS = [f"word{number}" for number in range(50)]


class Pace(TrainerCallback):
    def on_step_end(self, _, state, __, **___):
        time.sleep(PACE_S)
        if state.is_world_process_zero:
            sys.stdout.write(f"step {state.global_step}\n")
            sys.stdout.flush()


vocabulary = {word: number for number, word in enumerate(["<pad>", "</s>", *WORDS])}
marks = {"pad_token": "<pad>", "eos_token": "</s>"}
tokenizer = Tokenizer(models.WordLevel(vocabulary, marks["pad_token"]))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
trainer = SFTTrainer(
    model=LlamaForCausalLM(LlamaConfig(**size, **heads)),
    processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks),
    train_dataset=Dataset.from_list([{"text": " ".join(WORDS[:20])}] * 400),
    args=SFTConfig(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=2,
        save_steps=5,
        save_total_limit=2,
        bf16=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    ),
    callbacks=[Pace()],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if Path("out").exists() else None)
if trainer.is_world_process_zero():
    Path("trained").write_text(str(trainer.state.global_step))
