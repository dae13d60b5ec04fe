

class AttentionMasker(TyphoonMasker):
    """AttMask: mask what the model attends to most.

    Kakogeorgiou et al.: "What to Hide from Your Students: Attention-Guided Masked Image Modeling"
    (ECCV 2022, arXiv:2203.12719). There the patches of an image are masked that [CLS] attends to
    most in a teacher's last layer. For text, without a teacher, all else is [D]:

        a[t] = mean over the heads of the last layer of softmax_t <query [CLS], key t> / sqrt(d)
        score[v] <- (1 - ema) score[v] + ema (mean of T * a[t] at the positions of v)
        rate[v] = c * score[v], and a type without a score yet has the mean score

    T is the number of positions that the encoder sees: 1 is what each would get of an even
    attention. The selected positions count too, though they show [MASK]: a type that is always
    masked would otherwise keep its score for ever. So it does in MAE-LM, whose encoder sees the
    visible positions alone, side by side. The attention is that of the ordinary step, so that there
    is no other forward pass, but for that a rate per type and not per position.
    """

    uses_spread = False  # rates go as the scores

    def begin(self, inputs, model, steps):
        # What never occurs counts as seen, with score 0: the lowest, so that with spread 1 rates go
        # as the scores.
        self.seen = self.frequency == 0  # (V,)
        self.pad_id, self.encoder_sees_all = inputs.tokenizer.pad_id, not hasattr(model, "decoder")
        last = model.encoder.layers[-1]
        self.split_heads = last.split_heads
        last.query.register_forward_hook(self.keep_query)
        last.key.register_forward_hook(self.keep_key)

    def keep_query(self, linear, arguments, query):
        if linear.training:
            self.query = query[:, :1].detach().float()  # (B, 1, H): of [CLS]

    def keep_key(self, linear, arguments, key):
        if linear.training:
            self.key = key.detach().float()  # (B, T', H)

    def rates(self):
        share = self.frequency * self.seen  # (V,)
        mean = (share * self.scores).sum() / share.sum().clamp(min=1e-9)
        scores = torch.where(self.seen, self.scores, mean)  # (V,)
        everywhere = torch.ones_like(self.seen)
        return calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def observe(self, embedding_gradient, embedding_weight, ids, words, selected):
        encoded = ids != self.pad_id  # (B, T): what the encoder saw
        if not self.encoder_sees_all:
            encoded = encoded & ~selected
        count = encoded.sum(1, keepdim=True)  # (B, 1)
        kept = torch.arange(self.key.shape[1], device=ids.device) < count  # (B, T'): not padding
        query, key = self.split_heads(self.query), self.split_heads(self.key)  # (B, heads, .., d)
        logits = (query @ key.transpose(2, 3))[:, :, 0] / key.shape[3] ** 0.5  # (B, heads, T')
        attention = logits.masked_fill(~kept[:, None], -torch.inf).softmax(-1).mean(1)  # (B, T')
        relative = torch.zeros(ids.shape, device=ids.device)  # (B, T)
        relative[encoded] = (attention * count)[kept]  # both row by row

        scored, V = encoded & (words >= 0), len(self.scores)  # (B, T)
        new = mean_by_type(relative, ids, scored, V)  # (V,)
        present = mean_by_type(torch.ones_like(relative), ids, scored, V) > 0
        self.average(new, present)


MASKERS["attention"] = AttentionMasker
