"""The labels mean to Hugging Face's models what they mean to us."""

import torch
from fixture import FIRST, WORDS, DataCase
from torch.nn.functional import cross_entropy, log_softmax
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

VOCAB = FIRST + WORDS


def without_cache(model):
    """With a cache of keys, transformers does not look at the positions, and packed documents would see each other."""
    model.config.use_cache = False
    return model.eval()


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3,
    )
    return without_cache(GPT2LMHeadModel(config))


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=32, bos_token_id=1, eos_token_id=1, pad_token_id=0, initializer_range=0.3,
    )
    return without_cache(LlamaForCausalLM(config))


def by_hand(model, ids, trained):
    """Sum of the losses of one document of tokens, of which `trained` says at which a loss is taken; and their number."""
    logits = log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1)
    losses = [-logits[at - 1, ids[at]].item() for at in range(1, len(ids)) if trained[at]]
    return sum(losses), len(losses)


class Loss(DataCase):
    def documents(self, kind):
        """Each document alone, by its tokens."""
        found = []
        for batch in self.loader(kind, shuffle=False, batch_size=1):
            found.append((batch["input_ids"][0].tolist(), (batch["labels"][0] != -100).tolist()))
        return found

    @torch.no_grad()
    def test_the_loss_of_a_model_is_the_loss_by_hand(self):
        for kind in ("text", "chat"):
            for model in (gpt2(), llama()):
                documents = self.documents(kind)
                for number, batch in enumerate(self.loader(kind, shuffle=False)):
                    sums = [by_hand(model, *one) for one in documents[number * 5 : number * 5 + 5]]
                    expected = sum(s for s, _ in sums) / sum(n for _, n in sums)
                    self.assertAlmostEqual(model(**batch).loss.item(), expected, places=5)
                    if number == 4:
                        break

    @torch.no_grad()
    def test_packed_documents_do_not_see_each_other_and_lose_no_label(self):
        for kind in ("text", "chat"):
            for model in (gpt2(), llama()):
                each = [by_hand(model, *one) for one in self.documents(kind)]
                total, count = 0.0, 0
                several = 0
                for batch in self.loader(kind, packed=True, max_len=24, batch_size=3):
                    several += len(batch["cu_seqlens"]) - 1 > 2 * len(batch["input_ids"])
                    labels = (batch["labels"][:, 1:] != -100).sum().item()
                    total += model(**batch).loss.item() * labels
                    count += labels
                self.assertGreater(several, 0, "nothing was packed")
                self.assertEqual(count, sum(n for _, n in each))
                self.assertAlmostEqual(total / count, sum(s for s, _ in each) / count, places=5)

    @torch.no_grad()
    def test_shifted_labels_stand_at_their_rows(self):
        model = gpt2()
        hf, shifted = self.loader(shuffle=False), self.loader(shuffle=False, labels="shifted", max_len=15)
        for one, other in zip(hf, shifted):
            labels = other.pop("labels")
            logits = model(**other).logits
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
            self.assertAlmostEqual(model(**one).loss.item(), loss.item(), places=5)

    @torch.no_grad()
    def test_pairs_are_what_a_t5_takes(self):
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
        )
        model = T5ForConditionalGeneration(config).eval()
        alone = []
        for batch in self.loader("pairs", shuffle=False, batch_size=1):
            labels = batch["labels"]
            start = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], dim=1)
            logits = model(input_ids=batch["input_ids"], decoder_input_ids=start).logits
            alone.append((cross_entropy(logits[0], labels[0], reduction="sum").item(), labels.numel()))
        for number, batch in enumerate(self.loader("pairs", shuffle=False)):
            part = alone[number * 5 : number * 5 + 5]
            expected = sum(s for s, _ in part) / sum(n for _, n in part)
            self.assertAlmostEqual(model(**batch).loss.item(), expected, places=5)
