"""Streams that several processes and loader workers share: each sample reaches one of them.

timm's readers deal out shards (webdataset) and shards or samples (Hugging Face). They pad an epoch of training so
that every worker gives as many whole batches: a worker whose share is short begins it again. What they lack is
added here: an order that (seed, epoch, rank, worker) alone decide, a pass in evaluation that neither pads nor
cuts, and an account of the samples that cannot be read.
"""

import dataclasses
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from timm.data.readers.reader_wds import WdsTargetKeyError

from attnmix.data.decoding import UNREADABLE, check_picture, reason
from attnmix.data.labelled import StreamedImages

_logger = logging.getLogger(__name__)

_MARKS = 1 << 20  # places for the marks of unreadable samples, by a hash of their names


class SharedStream(StreamedImages):
    """A stream of which every process, and every worker of its loader, reads a share of its own.

    An unreadable sample is left out and warned about once, by name; more than 1 % of the set's and than
    `tolerated`: OSError naming them. The account lies in shared memory, for the loader's workers.

    Args:
        stream: timm's, whose reader is of the kind that the subclass is for.
        class_names: a name for each label.
        name: how the set is spoken of.
        tolerated: as many unreadable samples end no run, however small the set.
    """

    can_be_shared = True

    def __init__(
        self, stream: Any, *, class_names: list[str], name: str = "the stream", tolerated: int = 3
    ) -> None:
        super().__init__(stream, class_names=class_names)
        self.name = name
        self.allowed_unreadable = max(tolerated, (self.num_samples or 0) // 100)
        self._seed = stream.reader.common_seed
        self._is_unreadable = torch.zeros(_MARKS, dtype=torch.bool).share_memory_()
        self._found: list[str] = []

    @property
    def unreadable(self) -> list[str]:
        """Names of the samples that this process could not read; its loader's workers have lists of their own."""
        return list(self._found)

    def share_out(self, *, rank: int, processes: int, workers: int, seed: int) -> int:
        """See `StreamedImages.share_out`.

        Raises:
            ValueError: too few shards for all processes and workers to train.
        """
        reader = self.stream.reader
        reader.ds = None  # timm keeps to the first number of workers once it has begun to read
        # timm asks torch.distributed once, when the set is opened: before or after the processes have met
        reader.dist_rank, reader.dist_num_replicas = rank, processes
        reader.common_seed = self._seed + seed
        self.stream.set_loader_cfg(num_workers=workers)
        return workers

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        reader = self.stream.reader
        self._open(reader)
        count = 0
        for image, label in self.stream:
            yield image, label
            count += 1
        expected = reader._num_samples_per_worker() if reader.is_training else 0
        if count < expected:  # the other processes would wait for this one's next batch for ever
            raise OSError(
                f"{self.name} gave {count} samples where {expected} were to come: are its shards damaged?"
            )

    def _open(self, reader: Any) -> None:
        """Make `reader.ds` anew, for this worker and epoch."""
        raise NotImplementedError

    def _note_uneven(self, shards: int, readers: int) -> None:
        if shards % readers:
            _logger.warning(
                "%s has %d shards for %d readers (processes x loader workers): in each epoch some repeat samples "
                "and others leave some out, never the same; a multiple of %d would share evenly",
                self.name,
                shards,
                readers,
                readers,
            )

    def _report(self, name: str, error: Exception) -> None:
        place = zlib.crc32(name.encode()) % _MARKS
        if name not in self._found:
            self._found.append(name)
        if not self._is_unreadable[place]:
            self._is_unreadable[place] = True
            _logger.warning("unreadable image %s (%s): it is left out", name, reason(error))
        count = int(self._is_unreadable.sum())
        if count > self.allowed_unreadable:
            shown = ", ".join(self._found[:10]) + (", ..." if count > min(len(self._found), 10) else "")
            raise OSError(
                f"{count} samples of {self.name} cannot be read, more than the {self.allowed_unreadable} allowed; "
                f"repair or remove them: {shown} (the last: {reason(error)})"
            ) from error


class WebdatasetImages(SharedStream):
    """webdataset shards: whole ones to each worker of each process, in training as the epoch shuffles them."""

    def __init__(self, stream: Any, **options: Any) -> None:
        super().__init__(stream, **options)
        self._shards = stream.reader.split_info

    def share_out(self, *, rank: int, processes: int, workers: int, seed: int) -> int:
        """See `SharedStream.share_out`."""
        reader = self.stream.reader
        shards, readers = self._shards.filenames, processes * max(1, workers)
        if not reader.is_training:
            # for several processes timm's reader pads or cuts the pass; for one with shards of its own, neither
            own = dataclasses.replace(self._shards, filenames=tuple(shards[rank::processes]))
            reader.split_info = own
            rank, processes, workers = 0, 1, min(workers, len(own.filenames))
        elif len(shards) < readers:
            raise ValueError(
                f"{self.name} has {len(shards)} shards, too few for the {readers} that are to read one each "
                f"({processes} processes x {max(1, workers)} loader workers): "
                "lower loader.workers, start fewer processes, or write more and smaller shards"
            )
        elif rank == 0:
            self._note_uneven(len(shards), readers)
        return super().share_out(rank=rank, processes=processes, workers=workers, seed=seed)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return super().__iter__() if self.stream.reader.split_info.filenames else iter(())

    def _open(self, reader: Any) -> None:
        import webdataset

        reader._lazy_init()  # tells which worker this is
        words = [reader.common_seed, reader.epoch_count.value, reader.dist_rank, reader.worker_id]
        reader.worker_seed = int(np.random.SeedSequence(words).generate_state(1)[0])
        reader._lazy_init()  # with a shuffle of this seed that begins anew, where the old one would go on
        *before, decoder, rename = reader.ds.pipeline
        decode = webdataset.map(partial(self._decoded, decoder.args[0]))  # whose handler tells no sample's name
        reader.ds = webdataset.DataPipeline(*before, decode, rename)

    def _decoded(self, decode: Callable[[Any], Any], sample: dict[str, Any]) -> Any:
        try:
            decoded = decode(sample)
            if decoded is not None:  # a label below 0, which timm leaves out
                check_picture(decoded["jpg"])
        except WdsTargetKeyError:  # not this sample's fault
            raise
        except KeyError as error:
            self._report(_sample_name(sample), ValueError(f"it has no {error}"))
        except UNREADABLE as error:
            self._report(_sample_name(sample), error)
        else:
            return decoded
        return None


def _sample_name(sample: dict[str, Any]) -> str:
    return f"{os.path.basename(sample.get('__url__', ''))}/{sample['__key__']}"


class HuggingFaceImages(SharedStream):
    """A Hugging Face data set, streamed: shards, or one of so many samples, to each process; shards to workers."""

    @property
    def num_samples(self) -> int | None:
        """Samples of an epoch, over all processes, `repeats` included."""
        reader = self.stream.reader
        return reader.num_samples * max(1, reader.repeats)

    def share_out(self, *, rank: int, processes: int, workers: int, seed: int) -> int:
        """See `SharedStream.share_out`."""
        reader = self.stream.reader
        is_capped = not (reader.is_training or reader.download)  # downloaded, it has a shard for every worker
        super().share_out(rank=rank, processes=processes, workers=1 if is_capped else workers, seed=seed)
        try:
            reader._lazy_init()  # opens the split without reading a sample
            if is_capped:
                workers = min(workers, reader.ds.num_shards)
            elif rank == 0:
                self._note_uneven(reader.ds.num_shards, max(1, workers))
        except RuntimeError as error:
            shards = reader.ds.num_shards
            raise ValueError(
                f"{self.name} has {shards} shards for each of {processes} processes, too few for {workers} loader "
                "workers: lower loader.workers, or take the data set as hfds/ (not streamed)"
            ) from error
        finally:
            reader.ds = None
        return super().share_out(rank=rank, processes=processes, workers=workers, seed=seed)

    def _open(self, reader: Any) -> None:
        import datasets

        if isinstance(reader.ds, _Decoded):
            return
        reader._lazy_init()
        feature = (reader.ds.features or {}).get(reader.input_key)
        if isinstance(feature, datasets.Image):
            files = reader.ds.cast_column(reader.input_key, datasets.Image(decode=False))
            reader.ds = _Decoded(files, reader.input_key, feature.decode_example, self._report)


class _Decoded:
    """What timm's reader reads from, with each image decoded here, so that a damaged one does not end the pass."""

    def __init__(
        self, files: Any, key: str, decode: Callable[[Any], Any], report: Callable[[str, Exception], None]
    ) -> None:
        self.files = files
        self.key = key
        self.decode = decode
        self.report = report

    def set_epoch(self, epoch: int) -> None:
        self.files.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in self.files:
            file = sample[self.key]
            try:
                image = self.decode(file)
                check_picture(image)
            except UNREADABLE as error:
                self.report(_file_name(file), error)
            else:
                yield {**sample, self.key: image}


def _file_name(file: dict[str, Any]) -> str:
    """The path in the set, and a hash of the bytes: files of several archives may be named alike."""
    found = f"crc32 {zlib.crc32(file['bytes']):08x}" if file.get("bytes") is not None else ""
    return " ".join(part for part in (file.get("path"), found) if part)
