

class DifferenceMasker(RandomMasker):
    """Difference-Masking: mask what resembles the words that set the task apart.

    Wilf, Akter, Mathur, Liang, Mathew, Shou, Nyberg, Morency: "Difference-Masking: Choosing What to
    Mask in Continued Pretraining" (Findings of EMNLP 2023, arXiv:2305.14577), and its code.

        TF-ICF[v] = frequency in the task / frequency in the pretraining corpus
        anchors = the 20 words of the highest TF-ICF
        s[v] = the cosine of v with its nearest anchor;  rate[v] = c * s[v] * sigmoid(s[v])

    Twenty anchors, the nearest of them and s * sigmoid(s) are the code's; that TF-ICF is a plain
    ratio is our reading. Deviations, all [D]: the pretraining corpus is not here. BERT's vocabulary
    is in the order of its frequency, so by Zipf's law that of its r-th word goes as 1 / r. Anchors
    are whole words of two or more letters with at least 5 tokens. The cosine is that of the word
    embeddings, without context. Their code masks the share with the highest weights; here the rate
    goes as the weight.
    """

    anchors, fewest = 20, 5

    @torch.no_grad()
    def begin(self, inputs, model, steps):
        V, device = len(self.frequency), self.frequency.device
        whole = torch.zeros(V, dtype=torch.long)  # (V,): 1 for a word of two or more letters
        for v, token in enumerate(inputs.tokenizer.tokens):
            whole[v] = token.isalpha() and len(token) > 1
        rank = whole.cumsum(0).to(device)  # (V,): of the words among themselves
        enough = self.frequency * (inputs.train.words >= 0).sum() > self.fewest - 0.5
        tf_icf = self.frequency * rank * (whole.to(device) * enough)  # (V,)
        self.chosen = tf_icf.sort(descending=True, stable=True).indices[:self.anchors]

        embedded = model.encoder.embed_words(torch.arange(V, device=device)).double()  # (V, H)
        directions = embedded / embedded.norm(dim=1, keepdim=True).clamp(min=1e-9)
        nearest = (directions @ directions[self.chosen].T).max(1).values  # (V, anchors) -> (V,)
        scores = (nearest * nearest.sigmoid()).clamp(min=0) * (self.frequency > 0)
        # [PAD] is never masked, so the lowest score is 0: with spread 1 rates go as the scores.
        everywhere = torch.ones_like(scores, dtype=torch.bool)
        self.type_rates = calibrate(scores, everywhere, self.frequency, self.budget, spread=1.0)

    def rates(self):
        return self.type_rates


MASKERS["difference"] = DifferenceMasker
