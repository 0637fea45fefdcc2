"""Generators that can be guarded: models of transformers, and any callable from a text to an output."""

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor

from apood.data.record import Pair
from apood.detectors.contract.base import Detector
from apood.encoders.base.model_files import find_weight_files
from apood.encoders.base.pretrained import (
    GENERATING,
    Kind,
    LoadedTextModel,
    choose_dtype,
    find_kind,
    find_pretrained,
    fingerprint,
    load_text_model,
    load_tokenizer,
)
from apood.encoders.text.encoder import PreparedTexts, TextEncoder, find_generation_files
from apood.encoders.text.generation import Generated, Prompt, cut_outputs, read_prompts
from apood.encoders.text.model import Mode, probe_model
from apood.encoders.text.states import Rows, TextPass
from apood.encoders.text.tokenising import Tokeniser, batch_by_length, choose_batch_tokens
from apood.encoders.text.windows import Documents, OnLong
from apood.pipeline.opening import open_text_encoder_of
from apood.serving.shared.verdicts import Judged, find_owners, score_states
from apood.support.device import resolve_device
from apood.support.errors import InputError
from apood.support.turns import Turns
from apood.tokens.batch import Ragged, TokenBatch, cut_by_budget
from apood.tokens.identity import EncoderIdentity, describe_encoder, same_encoder, update_identity

__all__ = ["Failed", "Guardable", "GuardedCallable", "GuardedModel", "Reading"]

_CALLABLE_TEXTS = 64  # texts that are encoded before the callable is called for any of them
_OWN_ARGUMENTS = {"inputs", "input_ids", "inputs_embeds", "attention_mask", "encoder_outputs", "past_key_values"}
_NEW_TOKENS = 128  # expected length of an output, for the size of batches


@dataclass(frozen=True)
class Failed:
    """The place of an output that could not be made, with the error."""

    error: Exception


@dataclass(frozen=True)
class Reading:
    """Inputs that a generator has read.

    Attributes:
        indices: the indices of the inputs among the given texts.
        truncated: whether only the beginning of each input was scored.
        judged: the scores of the inputs.
        generate: a function of the positions in `indices` to generate for, and of the options of the call. It returns
            the outputs, or `Failed`, and, if outputs are checked, the scores of those that were made.
    """

    indices: list[int]
    truncated: list[bool]
    judged: Judged
    generate: Callable[[list[int], dict[str, Any]], tuple[list[Any], Judged | None]]

    @classmethod
    def of_refused(cls, refused: Mapping[int, str]) -> Self:
        """Return inputs that were not read, with the problem of each, by their indices."""
        count = len(refused)
        judged = Judged(np.full(count, -np.inf), [*refused.values()], [0] * count)
        return cls([*refused], [False] * count, judged, lambda _, __: ([], None))


class Guardable(Protocol):
    """A generator that shows the scores of what it has read before it generates."""

    def read(self, texts: list[str]) -> Generator[Reading]:
        """Yield the texts, batch by batch, each read when it is requested. Texts without tokens are left out.

        The generator may hold a lock until the next batch is requested, or until it is closed.
        """


class GuardedCallable:
    """A callable from a text to an output, with encoders for the detectors of its inputs and outputs.

    Args:
        function: the callable; it takes a text and the options of a call.
        detector: the detector of the inputs.
        output_detector: the detector of the outputs, which must then be texts.
        encoder: the encoder of `detector`; None to open it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        detector: Detector,
        output_detector: Detector | None,
        encoder: TextEncoder | None,
    ) -> None:
        self._function = function
        self._encoding = Turns()
        self._detector, self._output_detector = detector, output_detector
        identity = detector.encoder_ if encoder is None else encoder.identity
        shared = output_detector is not None and same_encoder(output_detector.encoder_, identity)
        also = output_detector.requires if output_detector is not None and shared else frozenset()
        self._encoder = _open_detector_encoder(detector, encoder, ("input",), "detector", also)
        self._output_encoder: TextEncoder | None = None
        if output_detector is not None:
            given, modes = self._encoder if shared else None, ("input", "reference")
            self._output_encoder = _open_detector_encoder(output_detector, given, modes, "output_detector")

    def read(self, texts: list[str]) -> Generator[Reading]:
        """Yield the texts, encoded in batches."""
        for start in range(0, len(texts), _CALLABLE_TEXTS):
            some = texts[start : start + _CALLABLE_TEXTS]
            prepared = self._encoder.prepare(some)
            judged = self._judge(self._detector, self._encoder, prepared, len(some))
            owners = find_owners(prepared)
            empty = {owners[number] for number in (prepared.sources.lengths == 0).nonzero().flatten().tolist()}
            indices = [index for index in range(len(some)) if index not in empty]
            yield Reading(
                [start + index for index in indices],
                [index in prepared.cut for index in indices],
                judged.select(indices),
                partial(self._generate, [some[index] for index in indices]),
            )

    def _judge(self, detector: Detector, encoder: TextEncoder, prepared: PreparedTexts, count: int) -> Judged:
        """Return the scores of `count` texts. Only scores are kept, because the states of many windows are large."""
        parts = []
        for start, stop in cut_by_budget(prepared.sources.lengths, choose_batch_tokens(encoder.device)):
            with self._encoding:
                tokens = encoder.run(prepared.slice(start, stop))
            parts.append(score_states(detector, tokens))
        return Judged.gather(count, find_owners(prepared), parts, dict(prepared.refused))

    def _generate(
        self, texts: list[str], chosen: list[int], options: dict[str, Any]
    ) -> tuple[list[Any], Judged | None]:
        outputs = [self._call(texts[index], options) for index in chosen]
        encoder, detector = self._output_encoder, self._output_detector
        made = [(texts[at], out) for at, out in zip(chosen, outputs, strict=True) if not isinstance(out, Failed)]
        if encoder is None or detector is None or not made:
            return outputs, None
        pairs = encoder.mode == "reference"
        prepared = encoder.prepare([Pair(*both) for both in made] if pairs else [output for _, output in made])
        return outputs, self._judge(detector, encoder, prepared, len(made))

    def _call(self, text: str, options: dict[str, Any]) -> Any:
        """Return the output for a text, or `Failed`, so that the outputs for other texts are kept."""
        try:
            output = self._function(text, **options)
        except Exception as error:
            return Failed(error)
        if self._output_encoder is not None and not isinstance(output, str):
            return Failed(InputError(f"To be checked, an output must be a string, got {type(output).__name__}."))
        return output


def _open_detector_encoder(
    detector: Detector, given: TextEncoder | None, modes: tuple[str, ...], role: str, also: frozenset[str] = frozenset()
) -> TextEncoder:
    identity = detector.encoder_
    if identity is not None and identity.get("mode") not in modes:
        raise InputError(
            f"The mode of a callable's {role} must be {' or '.join(modes)}, but it is {identity.get('mode')}."
        )
    encoder = open_text_encoder_of(detector, given, role=role, also=also)
    if not isinstance(encoder, TextEncoder):
        raise InputError("A guard in this process takes a TextEncoder; put `apood proxy` before a model server.")
    return encoder


class GuardedModel:
    """A causal or an encoder-decoder model of transformers, with its tokenizer, which generates from what it has read.

    The model and the tokenizer are not modified.

    Args:
        model: the model, in memory.
        tokenizer: its tokenizer.
        detector: the detector of the inputs.
        output_detector: the detector of the outputs.
        pipeline: the pipeline of transformers that contains the model; its settings apply.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        detector: Detector,
        output_detector: Detector | None = None,
        *,
        pipeline: Any = None,
    ) -> None:
        self._using = Turns()  # transformers may put hooks into a model during a pass
        self._model, self._pipeline, self._tokenizer = model, pipeline, copy.deepcopy(tokenizer)
        loaded, name = _wrap_model(model), str(getattr(model, "name_or_path", "") or type(model).__name__)
        identity = _get_identity(detector, "input", "detector")
        _check_prefix(pipeline, identity)
        template = identity.get("template")
        self._fill, self._context, self._name = loaded.padding_id, loaded.context, name
        self._max_tokens, self._template = int(identity["max_tokens"] or 0), None if template is None else str(template)
        self._on_long = cast(OnLong, identity.get("on_long") or "beginning")
        self._tokeniser = Tokeniser(self._tokenizer, name, self._max_tokens, self._template)
        self._input_pass = self._make_pass(detector, identity, loaded)
        self._reader = self._input_pass.model
        self._detector, self._output_detector = detector, output_detector
        self._output_pass: TextPass | None = None
        self._defaults: dict[str, Any] = {}
        if output_detector is not None:
            identity = _get_identity(output_detector, "output", "output_detector")
            if identity.get("template") != template:
                raise InputError(
                    f"The detector was fitted with the template {template!r}, but the output_detector with the "
                    f"template {identity.get('template')!r}: they must be the same."
                )
            self._output_pass = self._make_pass(output_detector, identity, loaded)
            beams = identity.get("beams", 1)
            self._defaults = {"max_new_tokens": identity["max_new_tokens"], "num_beams": beams, "do_sample": False}

    @classmethod
    def open(cls, model: str | Path, detector: Detector, output_detector: Detector | None) -> Self:
        """Return the model in a folder, or a model from the hub, on a GPU if there is one."""
        pretrained = find_pretrained(model)
        tokenizer = load_tokenizer(pretrained)
        device = resolve_device(None)
        loaded = load_text_model(pretrained, choose_dtype(device), generates=True, logprobs=True)
        return cls(loaded.model.to(device).eval(), tokenizer, detector, output_detector)

    def read(self, texts: list[str]) -> Generator[Reading]:
        """Yield the texts in batches of similar length. The model is locked until the next one is requested."""
        documents = self._tokeniser.tokenise_documents(texts, self._on_long)
        if documents.refused:
            yield Reading.of_refused(documents.refused)
        numbers = documents.counts.nonzero().flatten()  # of the texts that were not refused
        firsts = (documents.counts.cumsum(0) - documents.counts)[numbers]
        worst = self._judge_further(documents, firsts)
        sources, cut = documents.ids.select(firsts), set(documents.cut)
        for chosen in self._batch(sources):
            some, indices = sources.select(chosen), numbers[chosen].tolist()
            longer = {n: texts[index] for n, index in enumerate(indices) if index in cut or documents.counts[index] > 1}
            with self._using:
                with torch.inference_mode():
                    prompt = read_prompts(self._reader, some, self._fill)
                    tokens = _make_token_batch(self._input_pass.compute_input(prompt, some), self._detector)
                beginnings = score_states(self._detector, tokens)
                several = [n for n, index in enumerate(indices) if documents.counts[index] > 1]
                owners, further = [*range(len(indices)), *several], worst.select([indices[n] for n in several])
                judged = Judged.gather(len(indices), owners, [beginnings, further], {})
                judged = replace(judged, windows=documents.counts[indices].tolist())
                yield Reading(
                    indices, [index in cut for index in indices], judged, partial(self._generate, prompt, longer)
                )

    def _judge_further(self, documents: Documents, firsts: Tensor) -> Judged:
        """Return for each text the worst score of the windows after its first one, -inf if there are none.

        The model is released after every batch, so that other threads do not wait for all windows.
        """
        owners = torch.arange(len(documents.counts)).repeat_interleave(documents.counts)
        further = torch.ones(len(owners), dtype=torch.bool)
        further[firsts] = False
        places = further.nonzero().flatten()
        order, parts = [], []
        for chosen in batch_by_length(documents.ids.lengths[places], choose_batch_tokens(self._model.device)):
            some = documents.ids.select(places[chosen])
            with self._using, torch.inference_mode():
                tokens = _make_token_batch(self._input_pass.run(some), self._detector)
            order += owners[places[chosen]].tolist()
            parts.append(score_states(self._detector, tokens))
        return Judged.gather(len(documents.counts), order, parts, {})

    def _batch(self, sources: Ragged) -> Iterator[Tensor]:
        lengths = torch.where(sources.lengths > 0, sources.lengths + _NEW_TOKENS, 0)
        return batch_by_length(lengths, choose_batch_tokens(self._model.device))

    def _generate(
        self, prompt: Prompt, longer: dict[int, str], chosen: list[int], options: dict[str, Any]
    ) -> tuple[list[Any], Judged | None]:
        """Return the outputs for the chosen prompts and, if outputs are checked, their scores.

        The prompts in `longer` are only the beginnings of these texts, which are read again as a whole.
        """
        if given := sorted(_OWN_ARGUMENTS & options.keys()):
            raise InputError(f"{given[0]} cannot be an option, because the guard gives the model its input.")
        if (_find_setting("num_return_sequences", self._list_settings(options)) or 1) != 1:
            raise InputError("A guard generates one output per input: num_return_sequences must be 1.")
        options = {**({} if "generation_config" in options else self._defaults), **options}
        settings = self._list_settings(options)
        if _find_setting("pad_token_id", settings) is None:
            options["pad_token_id"] = self._fill
        order: list[int] = []
        texts: list[str] = []
        parts: list[Judged] = []
        with torch.inference_mode():
            for indices, some in self._get_whole_prompts(prompt, longer, chosen, settings):
                generated = self._continue_prompts(some, settings, options)
                order += indices
                texts += self._tokeniser.decode(generated.tokens)
                if self._output_pass is not None and self._output_detector is not None:
                    found = self._output_pass.compute_output(some, generated)
                    parts.append(score_states(self._output_detector, _make_token_batch(found, self._output_detector)))
        back = [order.index(index) for index in chosen]
        judged = Judged.gather(len(order), [*range(len(order))], parts, {}).select(back) if parts else None
        return [texts[at] for at in back], judged

    def _get_whole_prompts(
        self, prompt: Prompt, longer: dict[int, str], chosen: list[int], settings: list[Any]
    ) -> Iterator[tuple[list[int], Prompt]]:
        """Yield the chosen prompts: those read as a whole at once, and the longer ones in batches, read again."""
        if whole := [index for index in chosen if index not in longer]:
            yield whole, prompt.select(whole)
        if again := [index for index in chosen if index in longer]:
            tokeniser = Tokeniser(self._tokenizer, self._name, self._count_room(settings), self._template)
            sources = tokeniser.tokenise_sources([longer[index] for index in again]).ids
            for some in self._batch(sources):
                found = read_prompts(self._reader, sources.select(some), self._fill)
                yield [again[at] for at in some.tolist()], found

    def _count_room(self, settings: list[Any]) -> int:
        """Return how many tokens of a text the model can generate from, at least the detector's limit."""
        room = self._context
        if self._reader.kind == "causal":
            # New tokens take positions after the prompt. Without a limit, transformers uses the positions left.
            room -= int(_find_setting("max_new_tokens", settings) or 1)
        return max(self._max_tokens, min(room, int(self._tokenizer.model_max_length)))

    def _continue_prompts(self, prompt: Prompt, settings: list[Any], options: dict[str, Any]) -> Generated:
        arguments = prompt.make_arguments(_find_setting("num_beams", settings) or 1)
        if _find_setting("use_cache", settings) is False:
            arguments.pop("past_key_values", None)
        ends = _find_setting("eos_token_id", [*settings, self._model.config])
        sequences = self._run_generation(arguments, options)
        return cut_outputs(prompt, sequences, torch.tensor([] if ends is None else ends).flatten().long())

    def _run_generation(self, arguments: dict[str, Any], options: dict[str, Any]) -> Tensor:
        if self._pipeline is None:
            found = self._model.generate(**arguments, **options)
            return found if isinstance(found, Tensor) else found.sequences
        inputs = {name: arguments.pop(name) for name in ("input_ids", "attention_mask")}
        if self._pipeline.task == "text-generation":
            inputs["prompt_text"] = None  # needed only for the pipeline's own postprocessing, which is not used
        found = self._pipeline.forward(inputs, **{**self._pipeline._forward_params, **arguments, **options})
        sequences: Tensor = found["generated_sequence" if "generated_sequence" in found else "output_ids"]
        return torch.as_tensor(sequences).flatten(0, 1).to(self._model.device)

    def _list_settings(self, options: dict[str, Any]) -> list[Any]:
        """Return the sources of generation settings, in the order of precedence."""
        names = ("_forward_params", "_generate_kwargs", "generation_config", "_generation_defaults")
        own = [getattr(self._pipeline, name, None) for name in names]
        return [options, options.get("generation_config"), *own, self._model.generation_config]

    def _make_pass(self, detector: Detector, identity: EncoderIdentity, loaded: LoadedTextModel) -> TextPass:
        mode: Mode = "input" if identity["mode"] == "input" else "output"
        available = {"tokens", "summary"} | (
            {"token_logprobs"} if mode == "output" or loaded.kind == "causal" else set()
        )
        if lacking := sorted(detector.requires - available):
            raise InputError(
                f"The method {detector.name} needs {lacking[0]}, but the pass over the {mode} of a {loaded.kind} "
                f"model only gives {', '.join(sorted(available))}: use a method that reads no more than these."
            )
        logprobs = "token_logprobs" in detector.requires
        probe = probe_model(loaded, self._name, mode, str(identity["layers"]), with_head=logprobs)
        if "tokens" in detector.requires and probe.dim != detector.dim_:
            raise InputError(
                f"The states of {self._name!r} have D={probe.dim}, but the detector was fitted on D={detector.dim_}."
            )
        _check_same_model(loaded.model, identity)
        return TextPass(
            loaded.model,
            loaded.kind,
            mode=mode,
            reader=probe.reader,
            fill=self._fill,
            special_ids=None if identity.get("special_tokens", True) else self._tokeniser.special_ids,
            logprobs=logprobs,
            summary="summary" in detector.requires,
        )


def _wrap_model(model: Any) -> LoadedTextModel:
    kind: Kind = "encoder"
    if hasattr(model, "generate") and hasattr(model, "config"):
        # The class of a model in memory decides its kind. A configuration names it only after saving.
        config = copy.copy(model.config)
        config.architectures = [type(model).__name__]
        kind = find_kind(config)
    if kind not in GENERATING:
        raise InputError(
            "A model must be a causal language model or an encoder-decoder model of transformers, with its head, "
            f"got {type(model).__name__}."
        )
    if model.training:
        raise InputError(f"The {type(model).__name__} is in training mode, where states are random: call eval() first.")
    return LoadedTextModel(model, model.config, kind)


def _get_identity(detector: Detector, mode: str, role: str) -> EncoderIdentity:
    identity = None if detector.encoder_ is None else update_identity(detector.encoder_)
    if identity is None or not {"layers", "max_tokens"} <= identity.keys():
        raise InputError(
            f"The {role} does not know which encoder its tokens came from: fit it on tokens of a TextEncoder."
        )
    if identity.get("mode") != mode:
        raise InputError(f"The mode of a model's {role} must be {mode}, but it is {identity.get('mode')}.")
    return identity


def _check_prefix(pipeline: Any, identity: EncoderIdentity) -> None:
    """Raise InputError if the pipeline adds a prefix to inputs that the detector's template does not have."""
    prefix = getattr(pipeline, "prefix", None) or ""
    template = str(identity.get("template", "{text}"))
    if not template.startswith(prefix):
        raise InputError(
            f"The pipeline adds {prefix!r} before its inputs, but the detector was fitted with the template "
            f"{template!r}."
        )


def _check_same_model(model: Any, identity: EncoderIdentity) -> None:
    """Raise InputError if the model comes from other files than the detector's encoder.

    A model from a folder is recognised by the folder's fingerprint, a model from the hub by its name and revision. A
    model that was made in memory cannot be recognised.
    """
    folder = Path(model.name_or_path or "")
    name, revision = identity.get("model"), identity.get("revision")
    if model.name_or_path and (folder / "config.json").is_file() and find_weight_files(folder):
        mode: Mode = "output" if identity.get("mode") == "output" else "input"
        known = identity.get("fingerprint")
        differs = known is not None and fingerprint(folder, *find_generation_files(folder, mode)) != known
    else:
        commit = getattr(model.config, "_commit_hash", None)
        differs = None not in (commit, revision) and (model.name_or_path, commit) != (name, revision)
    if differs:
        raise InputError(
            f"The detector was fitted on tokens from {describe_encoder(identity)}, but the model from "
            f"{model.name_or_path!r} is another one: guard the model that it was fitted for, or fit it again."
        )


def _make_token_batch(found: Mapping[str, Rows], detector: Detector) -> TokenBatch:
    channels = {name: Ragged.from_lengths(rows.values.cpu(), rows.lengths) for name, rows in found.items()}
    states = channels.pop("states")
    return TokenBatch(states.values, states.offsets, channels, detector.encoder_)


def _find_setting(name: str, settings: Sequence[Any]) -> Any:
    """Return the first value that is not None among several settings (dictionaries, configurations, None)."""
    for source in settings:
        found = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if found is not None:
            return found
    return None
