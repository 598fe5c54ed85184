"""PyTorch version of mlx-vlm's SmolVLM: same arithmetic and weight names."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from training.models import Config, Llama
from training.pictures import SIDE

SCALE = 1  # patches of a token, in each direction
TOWER: Config = {
    "model_type": "smolvlm_vision",
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_channels": 3,
    "image_size": SIDE,
    "patch_size": 24,
    "layer_norm_eps": 1e-6,
}
TILE_TOKENS = (SIDE // TOWER["patch_size"] // SCALE) ** 2


class SightModel(nn.Module):
    """Maps tokens [rows, length] and pictures [count, 3, SIDE, SIDE] to logits.

    Features replace the embeddings of tokens `image_token`, in order.
    """

    def __init__(self, text: Config, tower: Config, image_token: int) -> None:
        super().__init__()
        self.image_token = image_token
        self.vision_model = Tower(tower)
        self.connector = Connector(tower["hidden_size"], text["hidden_size"])
        self.language_model = Llama(text)

    def features(self, pictures: Tensor) -> Tensor:
        """Return features [count, TILE_TOKENS, width]."""
        return self.connector(self.vision_model(pictures))

    def weights(self) -> dict[str, Tensor]:
        """Return all weights under mlx-vlm's names; it wants a head even where it is tied."""
        state: dict[str, Tensor] = self.state_dict()
        weights = {
            name.replace("language_model.model.", "language_model."): weight
            for name, weight in state.items()
        }
        embedding = weights["language_model.embed_tokens.weight"]
        weights["language_model.lm_head.weight"] = embedding.clone()
        # MLX has the channels of a convolution last.
        patches = "vision_model.embeddings.patch_embedding.weight"
        weights[patches] = weights[patches].permute(0, 2, 3, 1)
        return weights

    def forward(self, tokens: Tensor, pictures: Tensor) -> Tensor:
        return self.logits(self.hidden(tokens, pictures))

    def logits(self, x: Tensor) -> Tensor:
        return self.language_model.logits(x)

    def hidden(self, tokens: Tensor, pictures: Tensor) -> Tensor:
        """Return what the last layer puts out: [rows, length, width]."""
        x = self.language_model.model.embed_tokens(tokens)
        if len(pictures):
            seen = (tokens == self.image_token)[..., None]
            x = x.masked_scatter(seen, self.features(pictures).to(x.dtype))
        return self.language_model.through(x)


class Tower(nn.Module):
    """SigLIP without its head: [count, 3, SIDE, SIDE] to [count, patches, width]."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.size = config["hidden_size"], config["patch_size"]
        size = self.size
        patches = (config["image_size"] // size) ** 2
        self.embeddings = nn.Module()
        self.embeddings.patch_embedding = nn.Conv2d(3, width, size, stride=size)
        self.embeddings.position_embedding = nn.Embedding(patches, width)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(
            TowerLayer(config) for _ in range(config["num_hidden_layers"])
        )
        self.post_layernorm = nn.LayerNorm(width, eps=1e-5)
        nn.init.normal_(self.embeddings.position_embedding.weight, std=0.1)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = F.unfold(pictures, self.size, stride=self.size).mT
        embed = self.embeddings.patch_embedding
        x = F.linear(patches, embed.weight.flatten(1), embed.bias)
        x = x + self.embeddings.position_embedding.weight
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class TowerLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.self_attn = TowerAttention(width, config["num_attention_heads"])
        self.layer_norm1 = nn.LayerNorm(width, eps=eps)
        self.layer_norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = nn.Module()
        self.mlp.fc1 = nn.Linear(width, config["intermediate_size"])
        self.mlp.fc2 = nn.Linear(config["intermediate_size"], width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        inner = F.gelu(self.mlp.fc1(self.layer_norm2(x)), approximate="tanh")
        return x + self.mlp.fc2(inner)


class TowerAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        parts = (proj(x).view(shape) for proj in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys, values = (part.transpose(1, 2) for part in parts)
        # Written out: for few patches faster on a CPU than PyTorch's fused attention.
        scores = queries @ keys.mT * queries.shape[-1] ** -0.5
        mixed = scores.softmax(-1).to(values.dtype) @ values
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Connector(nn.Module):
    """Joins squares of `SCALE` x `SCALE` patches and projects them to the text's width."""

    def __init__(self, width: int, text_width: int) -> None:
        super().__init__()
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(width * SCALE**2, text_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        count, patches, width = x.shape
        side = round(patches**0.5)
        x = x.view(count, side // SCALE, SCALE, side // SCALE, SCALE, width)
        x = x.transpose(2, 3).reshape(count, -1, SCALE**2 * width)
        return self.modality_projection.proj(x)
