"""The data sets of the paper's experiments: their names, roles and fields, and how to get them.

A preset is an abbreviation: `xsum:train` stands for an input that could be written in full, and names its fields.
"""

from dataclasses import dataclass

from apood.support.errors import InputError

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True)
class Preset:
    """A data set of the paper.

    Attributes:
        name: what the user writes before the colon.
        experiment: the experiment of the paper that uses it.
        role: ID, AUX or OOD in that experiment.
        about: what the texts are.
        given: the input that the preset stands for, with {} in place of what the user writes after the colon.
        where: what the user writes there: a split of a set on the hub, otherwise FILE, PREFIX or FOLDER.
        field: the field that holds the text.
        target: the field that holds its summary or translation, if there is one.
        get: how to get the set, if that takes more than a connection.
        needs: the same in a few words.
        unsure: what could not be verified, or what the paper does not say.
    """

    name: str
    experiment: str
    role: str
    about: str
    given: str
    where: str
    field: str
    target: str | None = None
    get: str = ""
    needs: str = "a connection to the hub"
    unsure: str = ""

    @property
    def usage(self) -> str:
        """An example of the set as an input."""
        return f"{self.name}:{self.where.partition(',')[0]}"

    @property
    def hub_id(self) -> str | None:
        """The id of the set on the hub, or None if it is not there."""
        return self.given[3:].partition(":")[0] if self.given.startswith("hf:") else None

    def make_input(self, where: str) -> str:
        """Return the input in full."""
        if not where:
            raise InputError(f"'{self.name}:' needs {self.where} after the colon, for example {self.usage!r}.")
        if self.field == _SOUND:
            raise InputError(
                f"'{self.name}:{where}' holds sounds, not texts: give the folder with its audio files directly, "
                f"for example {where!r}."
            )
        return self.given.replace("{}", where)


_SOUND = "(sound)"
_PARQUET = "@refs/convert/parquet"
_SUMMARIZATION, _TRANSLATION, _LANGUAGE, _AUDIO = "summarization", "translation", "language modelling", "audio"
_PARALLEL = {"given": "moses:{}:en-fr", "where": "PREFIX", "field": "en", "target": "fr"}
_PALOMA = "Accept the conditions on the page of allenai/paloma on the hub, then log in with `hf auth login`."


def _opus(name: str, about: str, corpus: str, unsure: str = "") -> Preset:
    return Preset(
        name, _TRANSLATION, "OOD", about, **_PARALLEL, needs="a download from OPUS", unsure=unsure,
        get=f"Download {corpus} for en-fr in the Moses format from https://opus.nlpl.eu and unpack it; "
        f"PREFIX is the path up to the language: {name}:{corpus}.en-fr reads {corpus}.en-fr.en and {corpus}.en-fr.fr.",
    )  # fmt: skip


_ALL = (
    Preset(
        "xsum", _SUMMARIZATION, "ID", "BBC articles with a summary of one sentence",
        f"hf:EdinburghNLP/xsum:{{}}{_PARQUET}", "train, validation, test", "document", "summary",
    ),
    Preset(
        "c4", _SUMMARIZATION, "AUX", "web pages in English",
        "hf:allenai/c4/en:{}", "train, validation", "text",
    ),
    Preset(
        "cnn_dailymail", _SUMMARIZATION, "OOD", "articles of CNN and the Daily Mail",
        "hf:abisee/cnn_dailymail/3.0.0:{}", "test, train, validation", "article", "highlights",
    ),
    Preset(
        "newsroom", _SUMMARIZATION, "OOD", "articles of 38 news publications",
        "{}", "FILE", "text", "summary",
        "Request the data with the form on https://lil.nlp.cornell.edu/newsroom/download/index.html, then give the "
        "file of a split, for example newsroom:release/test.jsonl.gz.", "a request to Cornell",
    ),
    Preset(
        "reddit_tifu", _SUMMARIZATION, "OOD", "posts of the forum r/tifu with their authors' summaries",
        f"hf:ctr4si/reddit_tifu/long:{{}}{_PARQUET}", "train", "documents", "tldr",
        unsure="Whether the hub has a copy of this set that needs no code.",
    ),
    Preset(
        "samsum", _SUMMARIZATION, "OOD", "casual dialogues",
        "hf:knkarthick/samsum:{}", "test, train, validation", "dialogue", "summary",
        unsure="The paper uses Samsung/samsum, which is loaded by code; this is a copy of its tables.",
    ),
    Preset(
        "wmt15", _TRANSLATION, "ID", "parliament, news, web and UN documents, English and French",
        "hf:wmt/wmt15/fr-en:{}", "train", "translation.en", "translation.fr",
    ),
    Preset(
        "paracrawl", _TRANSLATION, "AUX", "web pages, English and French", **_PARALLEL, needs="a download from OPUS",
        get="Download ParaCrawl for en-fr in the Moses format from https://opus.nlpl.eu and unpack it; PREFIX "
        "is the path up to the language: paracrawl:ParaCrawl.en-fr reads ParaCrawl.en-fr.en and ParaCrawl.en-fr.fr.",
        unsure="Which version the paper uses.",
    ),
    Preset(
        "newstest2014", _TRANSLATION, "OOD", "news of 2014",
        "hf:wmt/wmt14/fr-en:{}", "test", "translation.en", "translation.fr",
    ),
    Preset(
        "newsdiscussdev2015", _TRANSLATION, "OOD", "comments below English news, development set of 2015",
        "{}", "FILE", "text", None,
        "Download the development sets from https://www.statmt.org/wmt15/translation-task.html, then give the "
        "English file: newsdiscussdev2015:dev/newsdiscussdev2015-enfr-src.en.sgm.", "a download from WMT",
        "The validation split of wmt/wmt15 on the hub mixes this set with others.",
    ),
    Preset(
        "newsdiscusstest2015", _TRANSLATION, "OOD", "comments below English news, test set of 2015", **_PARALLEL,
        needs="a download by sacrebleu",
        get="Run `sacrebleu -t wmt15 -l en-fr --echo src > newsdiscusstest2015.en` and the same with `--echo ref` for "
        "newsdiscusstest2015.fr, then give the path without .en: newsdiscusstest2015:newsdiscusstest2015.",
        unsure="The test split of wmt/wmt15 fr-en on the hub may be the other direction, whose English is translated.",
    ),
    _opus("opus-law", "laws of the European Union", "ELRC-EUIPO_law",
          "The paper says Law; its public code reads this corpus, earlier work JRC-Acquis."),
    _opus("opus-koran", "translations of the Koran", "Tanzil"),
    _opus("opus-medical", "documents of the European Medicines Agency", "EMEA"),
    _opus("opus-it", "manuals and messages of software", "Ubuntu",
          "The paper says IT; its public code reads this corpus, earlier work also GNOME, KDE4, PHP and OpenOffice."),
    _opus("opus-subtitles", "subtitles of films", "OpenSubtitles"),
    Preset(
        "pile", _LANGUAGE, "ID", "the training data of Pythia: web, books, papers, code",
        "hf:monology/pile-uncopyrighted:{}", "test, validation, train", "text",
        unsure="The Pile itself is no longer distributed; this copy lacks its parts under copyright.",
    ),
    Preset(
        "paloma-4chan", _LANGUAGE, "OOD", "posts of the forum 4chan",
        "hf:allenai/paloma/4chan_meta_sep:{}", "test, val", "text", None, _PALOMA, "a login to the hub",
        "The names of the splits on the hub.",
    ),
    Preset(
        "paloma-twitter", _LANGUAGE, "OOD", "tweets",
        "hf:allenai/paloma/twitterAAE_HELM_fixed:{}", "test, val", "text", None, _PALOMA, "a login to the hub",
        "The names of the splits on the hub.",
    ),
    Preset(
        "edgar", _LANGUAGE, "OOD", "annual reports of public companies, 1993 to 2020",
        f"hf:eloukas/edgar-corpus/full:{{}}{_PARQUET}", "test, train, validation", "section_1",
        unsure="Which section of the reports the paper uses: section_1 describes the business, section_7 is the "
        "discussion by the management.",
    ),
    Preset(
        "long-covid", _LANGUAGE, "OOD", "articles on the consequences of COVID-19",
        "hf:llangnickel/long-covid-classification-data:{}", "train, test", "text",
        unsure="The name of the field.",
    ),
    Preset(
        "mimic-iii", _LANGUAGE, "OOD", "clinical notes of intensive care",
        "{}", "FILE", "TEXT", None,
        "Become a credentialed user of https://physionet.org, sign the agreement of MIMIC-III, then give its file "
        "of notes: mimic-iii:NOTEEVENTS.csv.gz.", "credentials of PhysioNet",
    ),
    Preset(
        "mimii-dg", _AUDIO, "ID and OOD", "sounds of machines; seven of the fifteen are ID",
        "{}", "FOLDER", _SOUND, None,
        "Download the archives of https://zenodo.org/records/6529888, unpack them, then give their folder as audio.",
        "a download from Zenodo",
        "Which seven of the machines are ID.",
    ),
)  # fmt: skip

PRESETS = {preset.name: preset for preset in _ALL}
