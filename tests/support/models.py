"""Models that tests and measurements share, in any size, for teletensor or PyTorch (`m`)."""


def gpt_block(m, width, heads, tokens, dropout=0.0, approximate="none"):
    """One layer of GPT-2."""
    nn, f = m.nn, m.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

        def forward(self, x):
            batch = x.shape[0]
            parts = self.qkv(self.first(x)).reshape(batch, tokens, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.drop(self.out(a.transpose(1, 2).reshape(batch, tokens, width)))
            return x + self.drop(self.down(f.gelu(self.up(self.second(x)), approximate=approximate)))
    return Block()


def gpt(m, width, heads, layers, tokens, words, dropout=0.1):
    """A language model with the structure of GPT-2, from token numbers of shape (batch, tokens); the head
    has weights of its own."""
    nn = m.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
            self.blocks = nn.Sequential(*[gpt_block(m, width, heads, tokens, dropout, "tanh")
                                         for _ in range(layers)])
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, x):
            x = self.words(x) + self.places(m.arange(tokens, device=x.device))
            return self.head(self.last(self.blocks(x)))
    return Model()


def gpt_loss(m, y, targets):
    return m.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), targets.reshape(-1))


RESNET_50 = ((64, 256, 3), (128, 512, 4), (256, 1024, 6), (512, 2048, 3))


def resnet(m, stem, stages, classes):
    """A ResNet of bottlenecks; a stage is (inner channels, channels, blocks), and each stage after the first
    halves the image."""
    nn, f = m.nn, m.nn.functional

    class Bottleneck(nn.Module):
        def __init__(self, channels, inner, out, stride):
            super().__init__()
            self.a, self.na = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
            self.b = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
            self.nb, self.nc = nn.BatchNorm2d(inner), nn.BatchNorm2d(out)
            self.c = nn.Conv2d(inner, out, 1, bias=False)
            self.short = nn.Identity() if (channels, stride) == (out, 1) else nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

        def forward(self, x):
            y = f.relu(self.na(self.a(x)))
            y = f.relu(self.nb(self.b(y)))
            return f.relu(self.nc(self.c(y)) + self.short(x))

    blocks, channels = [], stem
    for inner, out, count in stages:
        for i in range(count):
            blocks.append(Bottleneck(channels, inner, out, 2 if i == 0 and blocks else 1))
            channels = out
    return nn.Sequential(
        nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(stem), nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(channels, classes))


def trainer(model, optimizer, loss):
    """Returns step(x, target), a training step that returns the loss."""
    def step(x, target):
        optimizer.zero_grad()
        value = loss(model(x), target)
        value.backward()
        optimizer.step()
        return value
    return step


def sin2_step(m):
    """A training step of a small network, on one point of sin^2; it returns the loss."""
    model = m.nn.Sequential(m.nn.Linear(1, 10), m.nn.Sigmoid(), m.nn.Linear(10, 1))
    criterion, optimizer = m.nn.MSELoss(), m.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    x, y = m.tensor([[0.4]]), m.tensor([[0.15]])

    def step():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss
    return step
