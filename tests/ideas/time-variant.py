

class TimeVariantMasker(RandomMasker):
    """The masking ratio falls over the run, from twice the budget to nothing.

    Yang, Zhang, Zhao: "Learning Better Masking for Better Language Model Pre-training" (ACL 2023,
    arXiv:2208.10806), the linear schedule of its masking ratio decay:

        rate at step t of T = 2 * budget * (1 - t / T), the same for every type

    The budget is met over the run, not in each epoch: of several epochs the first and the last are
    said in a NOTICE. A budget above 1/2 begins at rate 1.
    """

    def begin(self, inputs, model, steps):
        self.steps, self.step = steps, 0

    def rates(self):
        rate = min(2 * self.budget * (1 - self.step / self.steps), 1)
        return torch.full_like(self.frequency, rate)

    def observe(self, embedding_gradient, embedding_weight, ids, words, selected):
        self.step += 1


MASKERS["time-variant"] = TimeVariantMasker
