"""Renders conversations by transformers' apply_chat_template and marks the assistant's tokens, for chat_peer.rs.

Argument: a folder. Writes tokenizer.json, chats.jsonl and expected.json there.
"""

import json
import random
import re
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
           "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>"]

# Written after the published formats, in our own words.
TEMPLATES = {
    # ChatML as Qwen2.5 has it: a system message is made up where there is none.
    "chatml": """
{%- set first = messages[0] %}
{%- if first['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + first['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    # Headers as Llama 3 has them: contents are trimmed, the beginning token goes before the first.
    "llama3": "{% set all = messages %}{% for message in all %}"
    "{% set said = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set said = bos_token + said %}{% endif %}{{ said }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    # [INST] as Mistral has it: roles alternate, a system message goes into the first question.
    "mistral": """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] + '\n\n' %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'].strip() + eos_token }}
    {%- endif %}
{%- endfor %}
""",
    # Zephyr's form with the answers marked; on lines of its own, so that trimming is seen.
    "zephyr": """{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
    {% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' }}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}

    {% endif %}
    {% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
    {% endif %}
{% endfor %}
""",
    # Whatever else templates use: macros, namespaces, loop controls, slices, tests, Python's methods, JSON.
    "gadgets": """{%- macro head(role, last=false) -%}<|{{ role }}|>{{ '.' if last else ',' }}{%- endmacro %}
{%- set ns = namespace(count=0, names=[]) %}
{%- for message in messages if message.content is string %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if ns.count > 8 %}{% break %}{% endif %}
    {{- head(message.role, loop.last) }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- message.content.split('\\n')[-1].lstrip('\\n') | upper | replace('A', 'a') }}{{ eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content.strip().replace('é', 'e') }}{{ message | tojson }}{{ message['content'].startswith(' ') and 'blank' or 'solid' }}
    {%- endif %}
    {{- loop.index }}/{{ messages | length }}{{ ' ' ~ ns.count }}
{%- endfor %}
{%- if tools is none and undefined_thing is not defined %}{{ '|' }}{% endif %}
{{- messages[::-1][0].role }}{{ (messages | map(attribute='role') | list)[:2] | join('+') }}
{%- if add_generation_prompt %}{{ head('assistant') }}{% endif %}""",
}


def conversations():
    draw = random.Random(20)
    words = ["hello", " world", "\n", "  ", "é", "日本", "the quick", "brown", "12 345", "{{ x }}", "'quoted'", "<|im", "</s", "a\tb", "."]
    text = lambda n: "".join(draw.choice(words) for _ in range(draw.randint(0, n)))
    chats = []
    for i in range(60):
        chat = [{"role": "system", "content": "Be brief." + text(3)}] if i % 3 == 0 else []
        for _ in range(draw.randint(1, 4)):
            chat += [{"role": "user", "content": text(9)}, {"role": "assistant", "content": text(12)}]
        chats.append(chat if i % 7 else chat[:-1])
    return chats


def make_tokenizer(path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([m["content"] for c in conversations() for m in c] + ["user assistant system\n"] * 9, trainer)
    tokenizer.save(path)
    return PreTrainedTokenizerFast(tokenizer_file=path, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def mask_by_prefixes(tokenizer, template, chat):
    render = lambda messages, prompt: tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=prompt)
    whole = render(chat, False)
    encoded = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
    mask = [0] * len(encoded["input_ids"])
    for i, message in enumerate(chat):
        if message["role"] == "assistant":
            start, end = len(render(chat[:i], True)), len(render(chat[: i + 1], False))
            for t, (a, b) in enumerate(encoded["offset_mapping"]):
                if a < end and b > start:
                    mask[t] = 1
    return encoded["input_ids"], mask


def main(out):
    tokenizer = make_tokenizer(out + "/tokenizer.json")
    chats = conversations()
    with open(out + "/chats.jsonl", "w") as f:
        for chat in chats:
            f.write(json.dumps({"messages": chat}) + "\n")
    expected = []
    for name, template in TEMPLATES.items():
        rows = []
        for chat in chats:
            how = dict(chat_template=template)
            row = {
                "text": tokenizer.apply_chat_template(chat, tokenize=False, **how),
                "prompt": tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **how),
            }
            if re.search(r"\{%-?\s*generation", template):
                got = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **how)
                row["ids"], row["mask"] = got["input_ids"], got["assistant_masks"]
            else:
                row["ids"], row["mask"] = mask_by_prefixes(tokenizer, template, chat)
            rows.append(row)
        expected.append({"name": name, "template": template, "rows": rows})
    with open(out + "/expected.json", "w") as f:
        json.dump(expected, f)


main(sys.argv[1])
