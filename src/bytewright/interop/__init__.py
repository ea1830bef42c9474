"""Use a trained model in other programs.

- `gguf` writes the file that llama.cpp loads: model, tokenizer and metadata in one file.
- `scoring` computes the probability of given texts, and continues texts up to a stop string.
- `endings` makes questions about stories, scores them, and writes them as tasks of lm-evaluation-harness.
- `lm_eval` is the model class of the harness; `python -m bytewright.interop.lm_eval` runs it.

The folder of `transformers` is written and read by `bytewright.model.hf_llama`. The packages `gguf` and
`lm_eval` are imported only when they are used.
"""
