"""What a portrait looks like: skin, eyes, hair, glasses, light, ground and camera, pixel by pixel of what is visible.

Each pixel knows the point of rest of the head that it shows (`mesh`: decimeters about the middle between the
eyes), and patterns are functions of it: brows are where brows grow, whatever the face does. Hair is drawn on a second
surface above the skin, long hair on the hull behind it, both with soft edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d, pad

from idpgan.data.face_drawing import colored
from idpgan.data.faces import palette
from idpgan.portraits import mesh
from idpgan.portraits.mesh import Head
from idpgan.portraits.rasterize import Hits, rasterize
from idpgan.portraits.shape import Layer, Posed, dot, is_lens, unit
from idpgan.portraits.traits import ORIGINS, Traits

_SKIN = ((0.30, 0.185, 0.125), (0.72, 0.53, 0.40), (0.78, 0.57, 0.455))  # in the order of ORIGINS
_HAIR = ((0.020, 0.016, 0.014), (0.045, 0.030, 0.020), (0.11, 0.065, 0.035), (0.22, 0.13, 0.07), (0.48, 0.34, 0.18))
_GREY = (0.55, 0.54, 0.52)
_IRIS = ((0.07, 0.035, 0.02), (0.13, 0.07, 0.03), (0.20, 0.19, 0.10), (0.22, 0.32, 0.40))
_RIMS = ((0.02, 0.018, 0.018), (0.10, 0.05, 0.03), (0.35, 0.30, 0.22), (0.45, 0.45, 0.47))
_TABLE = torch.rand(1 << 12, generator=torch.Generator().manual_seed(7_105))  # heights of `_strands`
_GROUND = 6  # sides of the coarse pattern behind the head


def paint(head: Head, posed: Posed, traits: Traits, plain: Tensor, side: int, channels: int) -> Tensor:
    """Draw a batch: float32 (B, C, side, side), about [0, 1], with hard edges and without blur and grain.

    Args:
        plain: (B, 48) numbers in [0, 1), for colors and patterns.
    """
    picture = _Picture(head, posed, traits, plain, side, channels)
    picture.paint_skin()
    picture.paint_age()
    picture.paint_lips_and_cloth()
    picture.paint_face_hair()
    picture.paint_eyes_and_mouth()
    picture.light_up()
    picture.put_on_ground()
    picture.cover_with_hair()
    picture.cover_with_glasses()
    shaped = picture.shaped
    exposed = picture.image * shaped["exposure"] * picture.metered
    exposed = exposed / (1 + 0.25 * exposed**2).sqrt()  # film: lights are pressed together
    return (1.08 * exposed).clamp(1e-4, 1.0) ** (1 / shaped["gamma"])


class _Picture:
    """A batch of pictures while they are painted; fields of pixels are (B, 1, H, W), colors (B, C, 1, 1)."""

    def __init__(self, head: Head, posed: Posed, traits: Traits, plain: Tensor, side: int, channels: int) -> None:
        self.head, self.posed, self.plain = head, posed, plain
        self.traits, self.side, self.channels = traits, side, channels
        self.shaped = {name: value[:, None, None, None] for name, value in traits.items()}
        self.hits = _seen(posed.face, side)
        solid = posed.face.triangles
        numbers = posed.face.numbers
        fixed = torch.cat([head.points[solid], head.masks[numbers]], 2)
        self.rest, self.masks = self.hits.interpolate(fixed).split([3, len(mesh.MASKS)], 1)
        kind = torch.where(self.hits.covered, head.kinds[numbers][self.hits.triangle], -1)[:, None]
        self.skin, self.eye, self.teeth, self.tongue, self.lashes = (
            (kind == which).float() for which in (mesh.SKIN, mesh.EYE, mesh.TEETH, mesh.TONGUE, mesh.LASHES)
        )
        normals = self.hits.interpolate_moving(posed.face.normals, solid)
        self.normals = unit(normals)
        self._set_colors()

    def _set_colors(self) -> None:
        """Choose the colors that several features share."""
        device, traits, plain = self.plain.device, self.traits, self.plain
        origins = torch.stack([traits[name] for name in ORIGINS], 1)
        tone = origins @ torch.tensor(_SKIN, device=device) * torch.exp(0.22 * traits["skin_light"])[:, None]
        self.skin_rgb = (tone * (1 + 0.04 * (plain[:, 40:43] - 0.5))).clamp(0.02, 0.95)
        luma = colored(self.skin_rgb, 1)
        self.metered = 1.15 * (0.45 / luma) ** 0.5  # a camera exposes for the face, by half
        # Dark hair is what all origins have; the lightest third of the palette is mostly of one of them.
        lightness = (1 - traits["hair_dark"]) * (0.35 + 0.65 * traits["caucasian"])
        hair = palette(_HAIR, lightness.clamp(0, 1))
        grey = torch.tensor(_GREY, device=device)
        self.hair_rgb = torch.lerp(hair, grey.expand_as(hair), traits["hair_grey"][:, None])
        self.old = ((self.shaped["age"] - 25) / 65).clamp(0, 1)
        self.albedo = self._color(self.skin_rgb).repeat(1, 1, self.side, self.side)
        self.cover = self.hits.covered[:, None].float()

    def _color(self, rgb: Tensor) -> Tensor:
        return colored(rgb, self.channels)

    def _fixed(self, rgb: Sequence[float]) -> Tensor:
        return self._color(torch.tensor([list(rgb)], device=self.plain.device))

    def _paint(self, mask: Tensor, color: Tensor) -> None:
        self.albedo = self.albedo + mask * (color - self.albedo)

    def _strands(self, across: Tensor, which: int) -> Tensor:
        """Return smooth noise in [0, 1] of a coordinate whose unit is a strand's width."""
        place = across + self.plain[:, which, None, None, None] * 3000
        first = place.floor()
        table, index = _TABLE.to(place.device), first.long()
        low, high = (table.index_select(0, (index + step & len(table) - 1).flatten()) for step in (0, 1))
        return torch.lerp(low.view_as(place), high.view_as(place), place - first)

    def paint_skin(self) -> None:
        """Paint what makes skin uneven: blood, shadows around the eyes, blotches, freckles."""
        shaped, plain = self.shaped, self.plain
        x, y, z = self.rest.split(1, 1)
        wide = x.abs()
        tone = self._color(self.skin_rgb)
        red = self._color(self.skin_rgb * torch.tensor([1.02, 0.72, 0.68], device=plain.device))
        cheeks = _bell((wide - 0.42) / 0.20, (y + 0.42) / 0.20) + _bell(x / 0.13, (y + 0.34) / 0.14)
        self._paint((0.15 + 0.55 * shaped["ruddy"]) * cheeks.clamp(max=1) * self.skin, red)
        sockets = _bell((wide - 0.30) / 0.19, (y + 0.13) / 0.08) + 0.5 * _bell((wide - 0.20) / 0.12, (y - 0.05) / 0.08)
        self._paint((0.06 + 0.25 * self.old) * sockets.clamp(max=1) * self.skin, 0.62 * tone)
        nostrils = _bell((wide - 0.095) / 0.032, (y + 0.415) / 0.018) * (z > 0.27) * self.skin
        self._paint(0.85 * nostrils, 0.15 * red)
        waves = torch.zeros_like(x)
        for wave in range(4):
            direction = (plain[:, 3 * wave : 3 * wave + 3] - 0.5)[:, :, None, None] * 14
            waves = waves + (dot(self.rest, direction) + 6.3 * plain[:, wave, None, None, None]).sin()
        fine = self._strands(x * 37 + (y * 23).floor() * 91.7, 13) - 0.5
        self.albedo = self.albedo * (1 + shaped["blotches"] * (waves + (0.1 + 0.6 * shaped["freckles"] ** 3) * fine))

    def paint_age(self) -> None:
        """Paint wrinkles: lines of the forehead, crow's feet, the folds beside the nose."""
        x, y, _ = self.rest.split(1, 1)
        wide, old = x.abs(), self.old
        forehead = torch.sigmoid((y - 0.24) / 0.03) * torch.sigmoid((0.5 - wide) / 0.06)
        lines = (0.5 + 0.5 * (y * (45 + 20 * self.plain[:, 14, None, None, None]) + 3 * x * x).sin()) ** 4
        crow = _bell((wide - 0.55) / 0.06, (y + 0.02) / 0.10) * (0.5 + 0.5 * (70 * y).sin())
        fold = _bell((wide - 0.29 + 0.35 * (y + 0.5)) / 0.035, (y + 0.50) / 0.14)
        self._paint(
            (old * (0.30 * forehead * lines + 0.3 * crow) + (0.1 + 0.3 * old + 0.3 * self.shaped["smiling"]) * fold)
            * self.skin,
            0.5 * self._color(self.skin_rgb),
        )

    def paint_lips_and_cloth(self) -> None:
        """Paint lips and lids, with and without make-up, and what is worn."""
        shaped, plain, tone = self.shaped, self.plain, self._color(self.skin_rgb)
        lips = self._color(self.skin_rgb * torch.tensor([0.82, 0.56, 0.57], device=plain.device))
        stick = self._fixed((0.45, 0.06, 0.08)) * (0.5 + 0.5 * tone)
        lips = torch.lerp(lips, stick, 0.75 * shaped["make_up"] * shaped["lips_red"])
        self._paint((0.75 - 0.25 * shaped["smiling"]) * self.masks[:, 0:1] * self.skin, lips)
        self._paint((0.10 + 0.45 * shaped["make_up"]) * self.masks[:, 1:2] * self.skin, 0.5 * tone)
        cloth = self._color(plain[:, 15:18] ** 1.5 * self.traits["cloth"][:, None] * 1.4)
        self._paint(
            torch.sigmoid((-1.30 + 0.25 * self.rest[:, :1].abs() - self.rest[:, 1:2]) / 0.03) * self.skin, cloth
        )

    def paint_face_hair(self) -> None:
        """Paint brows, beard, moustache, and the scalp under the hair."""
        shaped = self.shaped
        x, y, z = self.rest.split(1, 1)
        wide, hair = x.abs(), self._color(self.hair_rgb)
        line = shaped["brow_height"] + shaped["brow_arch"] * (1 - ((wide - 0.30) / 0.22) ** 2)
        thick = shaped["brow_width"] * (0.65 + 0.35 * shaped["male"]) * (1.15 - 0.9 * (wide - 0.1))
        strands = self._strands(50 * wide - 30 * y, 18)
        brow = torch.sigmoid((thick - (y - line).abs() + 0.010 * (strands - 0.5)) / 0.008)
        brow = brow * torch.sigmoid((wide - 0.10) / 0.02) * torch.sigmoid((0.53 - wide) / 0.03)
        dark = 0.7 * torch.minimum(hair, self._color(self.skin_rgb) * 0.45)
        self._paint(brow * (z > -0.9) * self.skin * shaped["brow_dark"], dark)
        grown = 0.55 + 0.9 * (self._strands(x * 45 + (y * 40).floor() * 17.3, 19) - 0.5)
        bare = self.skin * (1 - self.masks[:, 0:1]) * (1 - self.masks[:, 3:4])
        full = shaped["beard_full"]
        below = -0.70 - 0.14 * (1 - full) + (0.3 + 0.9 * full) * wide**2
        jaw = torch.sigmoid((below - y) / 0.05) * torch.sigmoid((z + 0.75) / 0.08)
        goatee = torch.sigmoid((0.30 - wide) / 0.04)
        jaw = jaw * torch.where(full < 0.3, goatee, torch.ones_like(goatee)) * torch.sigmoid((y + 1.28) / 0.06)
        lip = _bell(wide / 0.27, (y + 0.545) / 0.062) ** 0.5 * torch.sigmoid((0.29 - wide) / 0.03)
        beard = torch.maximum(jaw * shaped["beard"], lip * shaped["moustache"])
        shaven = 0.16 * shaped["male"] * shaped["beard_thick"] * torch.maximum(jaw, lip)  # a shadow where none grows
        covered = torch.maximum(beard * shaped["beard_thick"] * (0.6 + 0.6 * grown), shaven).clamp(0, 0.97)
        self._paint(covered * bare, hair * 0.9)
        scalp = self._scalp(self.rest, 0.0) * (1 - self.masks[:, 2:3]) * self.skin
        self._paint(scalp * (0.92 - 0.15 * strands), hair)

    def _scalp(self, rest: Tensor, fringe: Tensor | float) -> Tensor:
        """Return where hair grows at points of rest (B, 3, H, W): above the hairline less the fringe, or behind."""
        shaped = self.shaped
        x, y, z = rest.split(1, 1)
        wide = x.abs()
        line = shaped["hairline"] + 0.04 * (9 * x).cos() - fringe
        line = line - 0.45 * (wide - 0.45).clamp_min(0)  # toward the temples
        old_man = shaped["male"] * ((shaped["age"] - 30) / 60).clamp_min(0)
        line = line + 0.35 * old_man * _bell((wide - 0.35) / 0.16, x * 0)
        top = torch.sigmoid((y - line) / 0.022)
        back = torch.sigmoid((shaped["temple"] + 0.22 * y - z) / 0.035) * torch.sigmoid((y + 0.30) / 0.06)
        return torch.maximum(top, back) * (1 - shaped["bald"] * torch.sigmoid((y - 0.1) / 0.1))

    def paint_eyes_and_mouth(self) -> None:
        """Paint the balls of the eyes, iris and pupil where they look, lashes, teeth and what is behind them."""
        shaped, traits, head = self.shaped, self.traits, self.head
        x = self.rest[:, :1]
        centers = torch.stack([head.points[places].mean(0) for places in head.eyes])
        center = torch.where(x > 0, centers[0].view(1, 3, 1, 1), centers[1].view(1, 3, 1, 1))
        out = unit(self.rest - center)
        gaze = torch.stack([traits["gaze_right"], traits["gaze_up"], torch.ones_like(traits["gaze_up"])], 1)
        angle = torch.acos(dot(out, unit(gaze)[:, :, None, None]).clamp(-1, 1))
        self._paint(self.eye, self._fixed((0.70, 0.66, 0.63)))
        iris = self._color(palette(_IRIS, (traits["iris_tone"] * (0.25 + 0.75 * traits["caucasian"])).clamp(0, 1)))
        edge = torch.sigmoid((shaped["iris_size"] - angle) / 0.03)
        self._paint(self.eye * edge, iris * (0.45 + 0.75 * torch.sigmoid((shaped["iris_size"] - 0.09 - angle) / 0.03)))
        self._paint(self.eye * torch.sigmoid((0.22 - angle) / 0.025), self._fixed((0.01, 0.01, 0.01)))
        self._paint(self.lashes * 0.8, self._fixed((0.02, 0.015, 0.015)))
        reach = max(1, round(0.022 * self.side))  # px: the edge of the upper lid is a dark line
        line = max_pool2d(pad(self.eye, (0, 0, 0, reach)), (reach + 1, 1), 1) - self.eye
        line = line.clamp(0, 1) * self.skin
        self._paint(line * (0.42 + 0.40 * shaped["make_up"]), self._fixed((0.03, 0.02, 0.02)))
        gaps = 1 - 0.15 * (0.5 + 0.5 * (x * 74).cos()) ** 6
        side = 1 - 0.4 * torch.sigmoid((x.abs() - 0.23) / 0.04)
        self._paint(self.teeth, self._fixed((0.95, 0.91, 0.82)) * gaps * side)
        self._paint(self.tongue, self._fixed((0.30, 0.11, 0.10)))
        self._paint(self.masks[:, 3:4] * self.skin * 0.95, self._fixed((0.07, 0.02, 0.02)))

    def light_up(self) -> None:
        """Shade by a lamp that casts shadows, a fill light, the sky, and what stands close around each point."""
        shaped = self.shaped
        lamp = self._lamp()
        facing = dot(self.normals, lamp)
        soft = (0.05 + 0.2 * self.skin) * (0.5 + self.plain[:, 20, None, None, None])  # light goes around in skin
        direct = ((facing + soft) / (1 + soft)).clamp_min(0) * (1 - (0.75 - 0.6 * self.teeth) * self._shadow(lamp))
        fill = unit(lamp * torch.tensor([-1.0, 0.3, 1.0], device=lamp.device)[None, :, None, None])
        second = dot(self.normals, fill).clamp_min(0)
        sky = 0.75 + 0.25 * self.normals[:, 1:2]
        closed = self._closed()
        half = unit(lamp + torch.tensor([0.0, 0.0, 1.0], device=lamp.device)[None, :, None, None])
        mirrored = dot(self.normals, half).clamp_min(0)
        glint = (
            shaped["gloss"] * mirrored**16 * self.skin + 0.9 * mirrored**90 * self.eye + 0.2 * mirrored**20 * self.teeth
        )
        self.received = shaped["lamp"] * direct + shaped["fill"] * second
        around = shaped["ambient"] * sky * closed
        inside = 1 - 0.45 * self.tongue - 0.30 * self.eye * (1 - closed)
        closed = torch.maximum(closed, self.teeth)
        tint = self._tint()
        self.image = self.albedo * inside * (around + self.received * tint * (0.45 + 0.55 * closed)) + glint * closed

    def _tint(self) -> Tensor:
        warm = self.traits["warmth"][:, None] * torch.tensor([1.0, 0.0, -1.0], device=self.plain.device)
        return self._color(1 + warm)

    def _lamp(self) -> Tensor:
        """Return the direction of the lamp, (B, 3, 1, 1)."""
        traits = self.traits
        toward = torch.stack([traits["light_right"], traits["light_high"], torch.ones_like(traits["yaw"])], 1)
        return unit(toward)[:, :, None, None]

    def _closed(self) -> Tensor:
        """Return how open to all sides each pixel is, 1 or less: pixels deeper than those around are darker.

        Luft, Colditz and Deussen (Image enhancement by unsharp masking the depth buffer, 2006).
        """
        depth, covered = self.hits.depth[:, None] * self.cover, self.cover
        dark = torch.zeros_like(depth)
        for share, strength in ((0.045, 3.5), (0.14, 1.5)):
            reach = 2 * round(share * self.side / 2) + 1
            mean = _averaged(depth, reach) / _averaged(covered, reach).clamp_min(1e-3)
            dark = dark + strength * (mean - depth).clamp(0, 0.12)
        return 1 - dark.clamp(0, 0.75) * covered

    def _shadow(self, lamp: Tensor) -> Tensor:
        """Return where the way to the lamp is blocked, 0 to 1, by steps over the depths of the picture."""
        batch, side, depth = len(lamp), self.side, self.hits.depth
        row = torch.arange(side, device=depth.device)
        toward, scale = lamp[:, :, 0, 0], self.posed.camera.scale
        blocked = torch.zeros_like(depth)
        for far in (0.07, 0.13, 0.2, 0.3, 0.42):
            right, down = ((far * scale * part).round().long() for part in (toward[:, 0], -toward[:, 1]))
            columns = (row + right[:, None]).clamp(0, side - 1)
            rows = (row + down[:, None]).clamp(0, side - 1)
            place = (rows[:, :, None] * side + columns[:, None, :]).view(batch, -1)
            there = depth.view(batch, -1).gather(1, place).view_as(depth)
            over = there - depth - (far * toward[:, 2])[:, None, None]
            blocked = torch.maximum(blocked, ((over - 0.015) / 0.03).clamp(0, 1))
        reach = 2 * round(0.015 * side) + 1
        return _averaged(blocked[:, None], reach)

    def put_on_ground(self) -> None:
        """Put the head in front of an unsharp ground."""
        plain, shaped, side = self.plain, self.shaped, self.side
        coarse = plain[:, : _GROUND**2].view(-1, 1, _GROUND, _GROUND) - 0.5
        pattern = interpolate(coarse, (side, side), mode="bicubic")
        ramp = torch.linspace(-1, 1, side, device=plain.device)
        slope = shaped["ground_slope"] * ramp.view(1, 1, 1, -1) * (plain[:, 36, None, None, None] - 0.2)
        bright = shaped["ground"] ** 1.6 + 2.2 * shaped["ground_pattern"] * shaped["ground"] * pattern + slope
        hue = self._color(1 + 0.35 * (plain[:, 37:40] - 0.5))
        self.image = torch.lerp((bright.clamp_min(0.01) * hue).expand_as(self.image), self.image, self.cover)

    def cover_with_hair(self) -> None:
        """Draw long hair, then the hair that stands off the scalp, in front of what is farther away."""
        shaped = self.shaped
        for layer, long in ((self.posed.hull, True), (self.posed.hair, False)):
            hits = _seen(layer, self.side, two_sided=long)
            rest = hits.interpolate(self.head.points[layer.triangles])
            x, y, z = rest.split(1, 1)
            curl = 0.12 * shaped["curls"] * (14 * y).sin()
            combed = 0 if long else 0.35 * x * shaped["fringe_slope"] * y
            across = torch.atan2(x - 0.5 * shaped["parting"] * (y > 0.3), z + 0.9) + combed + curl
            strands = 0.5 * self._strands(26 * across, 21) + 0.5 * self._strands(60 * across + 3 * y, 22)
            alpha = self._falling(rest, strands) if long else self._standing(rest, strands)
            nearer = (hits.depth > self.hits.depth)[:, None] * hits.covered[:, None]
            normals = unit(hits.interpolate_moving(layer.normals, layer.triangles))
            self._blend(alpha * nearer, (0.75 if long else 1.0) * self._hair_light(normals, strands))

    def _falling(self, rest: Tensor, strands: Tensor) -> Tensor:
        """Return how much long hair covers: beside the face, down to its length, with ragged edges."""
        _, y, z = rest.split(1, 1)
        ragged = strands - 0.5
        end = torch.sigmoid((y + self.shaped["hair_length"] + 0.25 * ragged) / 0.04)
        face = self.cover * torch.sigmoid((self.rest[:, 2:] + 0.50) / 0.05)
        return end * torch.sigmoid((-0.12 - z + 0.2 * ragged) / 0.04) * (1 - face)

    def _standing(self, rest: Tensor, strands: Tensor) -> Tensor:
        """Return how much the hair of the scalp covers; what is shorter than half a centimeter is painted alone."""
        shaped, x = self.shaped, rest[:, :1]
        side = 0.5 + 1.1 * (x - shaped["parting"]).abs().clamp(max=0.6)
        fringe = shaped["fringe"] * (shaped["fringe_length"] * side + 0.4 * shaped["fringe_slope"] * x)
        ragged = 0.16 * (strands - 0.5) * (0.3 + shaped["fringe"])
        return self._scalp(rest, fringe + ragged) * (shaped["hair_high"] > 0.045)

    def _hair_light(self, normals: Tensor, strands: Tensor) -> Tensor:
        """Return the color of lit hair: strands, and a band of gloss across them (Kajiya and Kay 1989)."""
        shaped, lamp = self.shaped, self._lamp()
        direct = dot(normals, lamp).clamp_min(0)
        half = unit(lamp + torch.tensor([0.0, 0.0, 1.0], device=lamp.device)[None, :, None, None])
        along = (1 - normals[:, 2:] ** 2).clamp_min(0).sqrt() * half[:, 1:2] - normals[:, 1:2] * 0.8
        band = (1 - along**2).clamp_min(0) ** 12 * direct
        hair = self._color(self.hair_rgb)
        lit = shaped["ambient"] * (0.7 + 0.3 * normals[:, 1:2]) + shaped["lamp"] * direct * self._tint()
        return hair * (0.45 + 1.1 * strands) * lit + (0.02 + 0.25 * hair) * band * strands**2 * shaped["gloss"] * 4

    def cover_with_glasses(self) -> None:
        """Draw rims, and the shine of lenses."""
        layer, shaped = self.posed.glasses, self.shaped
        hits = _seen(layer, self.side, two_sided=True)
        nearer = ((hits.depth > self.hits.depth - 0.02) & hits.covered)[:, None].float()
        lens = is_lens(layer)[hits.triangle][:, None].float()
        row = torch.arange(self.side, device=lens.device) / self.side
        shine = (row[None, :] + 1.3 * row[:, None] + 3 * self.plain[:, 23, None, None]) % 0.8 / 0.8
        glare = shaped["glare"] * (shine[:, None] > 0.72) * shaped["lamp"]
        self._blend(nearer * lens * (0.04 + 0.5 * glare), self._fixed((0.8, 0.8, 0.85)).expand_as(self.image))
        rims = self._color(palette(_RIMS, self.traits["rim_tone"])) * (shaped["ambient"] + 0.8 * shaped["lamp"])
        self._blend(nearer * (1 - lens) * 0.95, rims.expand_as(self.image))

    def _blend(self, alpha: Tensor, color: Tensor) -> None:
        self.image = self.image + alpha * (color - self.image)


def _seen(layer: Layer, side: int, *, two_sided: bool = False) -> Hits:
    return rasterize(layer.points, layer.triangles, side, side, layer.shown, two_sided=two_sided)


def _averaged(field: Tensor, reach: int) -> Tensor:
    """Average (B, 1, side, side) over squares with a side of an odd number of px; beyond the edge is 0."""
    place = torch.arange(field.shape[-1], device=field.device)
    near = ((place[:, None] - place).abs() <= reach // 2).float() / reach  # one product, however large the squares
    return near @ field @ near


def _bell(across: Tensor, up: Tensor) -> Tensor:
    """Return exp(-(across^2 + up^2) / 2)."""
    return torch.exp(-0.5 * (across**2 + up**2))


def developed(image: Tensor, traits: Traits, finer: int) -> Tensor:
    """Average (B, C, finer H, finer W) down to (B, C, H, W), and soften it as a camera does."""
    small = avg_pool2d(image, finer)
    soft = avg_pool2d(pad(small, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return torch.lerp(small, soft, traits["blur"][:, None, None, None])
