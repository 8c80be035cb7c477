//! Text as numbers of a tokeniser that others made, in Hugging Face's `tokenizer.json`.

mod demands;
mod ending;
mod learnt;
mod unknown;
mod windows;

use std::fmt::Display;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use muster_core::ids::Digest;
use muster_core::limits::TOKENISER_BYTES;
use muster_core::manifest;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::{Numbering, TOKENISER, token_numbers};
use muster_store::regular;
use tokenizers::models::ModelWrapper;
use tokenizers::{Encoding, PostProcessorWrapper, Tokenizer};

use self::demands::Demands;
pub use self::ending::{Ending, TOKENISER_CONFIG};
pub use self::learnt::{END, LEARNT_TOKENS, learn};
pub use self::unknown::Unknown;
use self::windows::{Cutter, Joiner, Token, Window};
use crate::pointer::no_pointer;

/// The way out, where a file is no tokeniser.
const ANOTHER: &str = "name the tokenizer.json of a model from Hugging Face";
/// Numbers that a run allows.
const MOST_TOKENS: u32 = 1 << 20;
/// Most bytes of a text that are given to the tokeniser at once, which takes about hundred times as much memory.
const PIECE: usize = 1 << 18;
/// Pieces that are in work at a time.
const BATCH: usize = 16;
/// Pieces that are given to the tokeniser as one, at most, where they cannot be joined otherwise.
const TOGETHER: usize = 8;
/// Texts that are in work at a time, however short they are.
const TEXTS: usize = 1 << 14;

/// A tokeniser. What it makes of a text depends on nothing but file and text.
pub struct LoadedTokeniser {
    path: PathBuf,
    file: Vec<u8>,
    digest: Digest,
    tokens: u32,
    demands: Demands,
    rules: Tokenizer,
}

impl LoadedTokeniser {
    /// Reads a `tokenizer.json`, or the one of a model's folder.
    ///
    /// # Errors
    /// [`Failure`] naming the file that is missing, or no tokeniser, or knows more numbers than a run allows.
    pub fn open(path: &Path) -> Outcome<Self> {
        let path = &if path.is_dir() { path.join(TOKENISER) } else { path.to_owned() };
        let file = regular::read(path, TOKENISER_BYTES.into())
            .map_err(|error| wrong(path, &format!("cannot be read ({})", error.cause()), ANOTHER))?;
        no_pointer(path, &file)?;
        // Others read the corpus' file: it has no mark of an editor.
        Self::of(path, regular::unmarked(file))
    }

    /// Takes a `tokenizer.json` that is at hand, by the path that it has or will have.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of(path: &Path, file: Vec<u8>) -> Outcome<Self> {
        let (wrong, another) = (|what: &dyn Display, then| wrong(path, what, then), ANOTHER);
        let unfit = |error: String| wrong(&format!("is not a tokeniser ({error})"), another);
        // The file may be a stranger's: before the library reads it, and allocates what it says.
        let demands = Demands::of(&file).map_err(unfit)?;
        let rules = caught(|| read(&file)).map_err(unfit)?;
        let tokens = token_numbers(&file).unwrap_or_default();
        let vocabulary = rules.get_vocab(true);
        demands::check_tokens(vocabulary.keys().map(String::len))
            .map_err(|what| wrong(&what, "use another tokeniser"))?;
        // Members check the corpus against what the file says (DATA-4), without running the tokeniser.
        if vocabulary.into_values().any(|number| number >= tokens) {
            let what = "gives an added token another number than it says";
            return Err(wrong(&what, "save it again with `tokenizers`"));
        }
        if !(2..=MOST_TOKENS).contains(&tokens) {
            let what = format!("knows {tokens} token numbers, a run needs 2 to {MOST_TOKENS}");
            return Err(wrong(&what, "use another tokeniser"));
        }
        let mut tokeniser =
            Self { path: path.to_owned(), file, digest: Digest::default(), tokens, demands, rules };
        if let manifest::Tokeniser::File(named) = tokeniser.numbering(None).tokeniser() {
            tokeniser.digest = named.digest;
        }
        Ok(tokeniser)
    }

    /// [`muster_core::hash::Domain::TOKENISER`] of the file.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Its `tokenizer.json`.
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// A `tokenizer.json` that gives others the numbers of a run: nothing is added to a text, cut off it or drawn at random. The
    /// same bytes, unless they say otherwise.
    ///
    /// # Errors
    /// [`Failure`] naming the file that the library cannot write.
    pub fn as_read(&self) -> Outcome<Vec<u8>> {
        let same = caught(|| {
            Ok(Tokenizer::from_bytes(&self.file)?.to_string(false)? == self.rules.to_string(false)?)
        });
        let read = match same {
            Ok(true) => return Ok(self.file.clone()),
            _ => caught(|| self.rules.to_string(false)),
        };
        read.map(String::into_bytes).map_err(|error| {
            Failure::environment(format!("{}: cannot be written again ({error})", self.path.display()))
        })
    }

    /// Its numbers lie below this one.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// How a corpus of its numbers is packed whose texts end with this token.
    pub fn numbering(&self, end: Option<u32>) -> Numbering<'_> {
        Numbering { file: &self.file, tokens: self.tokens, end }
    }

    /// Whether its control words, like `<|im_start|>`, are plain text where a text has them. They are control tokens otherwise,
    /// as in a prompt.
    #[must_use]
    pub fn with_words_as_text(mut self, plain: bool) -> Self {
        self.rules.set_encode_special_tokens(plain);
        self
    }

    /// The numbers of a text, with none added at its ends.
    ///
    /// # Errors
    /// [`Failure`] when the tokeniser has nothing for a part of the text.
    pub fn encode(&self, text: &str) -> Outcome<Vec<u32>> {
        let mut encoder = TextEncoder::new(self);
        let mut encoded = encoder.push(text, (), true)?;
        encoded.extend(encoder.finish()?);
        Ok(encoded.into_iter().flat_map(|encoded| encoded.numbers).collect())
    }

    /// Tokens with the bytes that they stand for. Texts are worked on by many threads and come back in their order.
    fn tokens_of(&self, texts: Vec<&str>) -> Outcome<Vec<Vec<Token>>> {
        let encoded = caught(|| self.rules.encode_batch(texts, false)).map_err(|error| {
            Failure::environment(format!(
                "{}: has no tokens for the text ({error}); use a tokeniser that knows unknown words",
                self.path.display()
            ))
        })?;
        let tokens = |encoding: &Encoding| {
            let offsets = encoding.get_offsets().iter();
            encoding
                .get_ids()
                .iter()
                .zip(offsets)
                .map(|(&number, &(from, to))| Token { number, from, to })
                .collect()
        };
        Ok(encoded.iter().map(tokens).collect())
    }

    /// The text of numbers, special tokens by their names. Numbers that it does not know are left out; U+FFFD stands
    /// for what is no text.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let decoded = caught(|| self.rules.decode(tokens, false));
        decoded.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.into())
    }
}

fn wrong(path: &Path, what: &dyn Display, then: &str) -> Failure {
    Failure::environment(format!("{}: {what}; {then}", path.display()))
}

/// The rules of a file without what it adds to a text or cuts off it: a text is packed as it is.
fn read(file: &[u8]) -> tokenizers::Result<Tokenizer> {
    let mut rules = Tokenizer::from_bytes(file)?;
    rules.with_truncation(None)?.with_padding(None);
    // It only adds tokens at the ends, which are not wanted; what it says may repeat a text any number of times.
    rules.with_post_processor(None::<PostProcessorWrapper>);
    let model = settled(rules.get_model().clone());
    rules.with_model(model);
    Ok(rules)
}

/// What the library says of a file or a text. It panics where a file contradicts itself.
fn caught<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|_| "it contradicts itself".to_owned())?.map_err(|error| error.to_string())
}

/// The model without what it would draw at random.
fn settled(mut model: ModelWrapper) -> ModelWrapper {
    match &mut model {
        ModelWrapper::BPE(model) => model.dropout = None,
        ModelWrapper::Unigram(model) => (model.alpha, model.nbest_size) = (None, None),
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => {}
    }
    model
}

/// Numbers of a text, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPart<T> {
    /// They follow those before.
    pub numbers: Vec<u32>,
    /// What the text was called.
    pub name: T,
    /// Whether they end it.
    pub ends: bool,
}

/// Gives numbers to texts that come piece by piece: those that the whole text would have at once, whatever its length.
pub struct TextEncoder<'a, T> {
    tokeniser: &'a LoadedTokeniser,
    most: usize,
    cutter: Cutter,
    joiner: Joiner,
    queue: Vec<(Window, T)>,
    queued: usize,
}

impl<'a, T: Clone> TextEncoder<'a, T> {
    /// For texts that begin here.
    pub fn new(tokeniser: &'a LoadedTokeniser) -> Self {
        let most = tokeniser.demands.piece(PIECE);
        Self {
            tokeniser,
            most,
            cutter: Cutter::new(most),
            joiner: Joiner::default(),
            queue: Vec::new(),
            queued: 0,
        }
    }

    /// Goes on with a text that is called so; `ends` says that nothing more of it comes. Returns what is done by now.
    ///
    /// # Errors
    /// [`Failure`] when the tokeniser has nothing for a part of the text.
    pub fn push(&mut self, piece: &str, name: T, ends: bool) -> Outcome<Vec<EncodedPart<T>>> {
        let mut windows = Vec::new();
        self.cutter.push(piece, ends, &mut windows);
        for window in windows {
            self.queued += window.text.len();
            self.queue.push((window, name.clone()));
        }
        if self.queued < BATCH * self.most && self.queue.len() < TEXTS {
            Ok(Vec::new())
        } else {
            self.finish()
        }
    }

    /// What is not done yet.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(&mut self) -> Outcome<Vec<EncodedPart<T>>> {
        self.queued = 0;
        let (queue, mut parts) = (mem::take(&mut self.queue), Vec::new());
        let tokens =
            self.tokeniser.tokens_of(queue.iter().map(|(window, _)| window.text.as_str()).collect())?;
        let encode = |text: &str| -> Outcome<Vec<Token>> {
            Ok(self.tokeniser.tokens_of(vec![text])?.pop().unwrap_or_default())
        };
        for ((window, name), tokens) in queue.into_iter().zip(tokens) {
            let (mut numbers, ends) = (Vec::new(), window.ends);
            self.joiner.push(window, tokens, TOGETHER * self.most, &encode, &mut numbers)?;
            parts.push(EncodedPart { numbers, name, ends });
        }
        Ok(parts)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use muster_replica::exit::Exit;

    use super::*;

    /// Words of a shop, and an end.
    pub(crate) const WORDS: &str = r#"{
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [{"id": 300, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [300], "tokens": ["</s>"]}}},
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "bread": 1, "and": 2, "butter": 258, ".": 4, "</s>": 300},
            "unk_token": "[UNK]"}
    }"#;

    /// Pairs of letters, at random if one let it.
    pub(crate) const PAIRS: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\s*\\S+"},
            "behavior": "Isolated", "invert": false},
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": 0.5, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": {"a": 0, "b": 1, " ": 2, "\n": 3, "ab": 4, "abab": 5}, "merges": ["a b", "ab ab"]}
    }"#;

    fn tokeniser(directory: &Path, json: &str) -> Outcome<LoadedTokeniser> {
        let path = directory.join("tokenizer.json");
        fs::write(&path, json).unwrap();
        LoadedTokeniser::open(&path)
    }

    #[test]
    fn words_become_numbers_and_words() {
        let directory = tempfile::tempdir().unwrap();
        let words = tokeniser(directory.path(), WORDS).unwrap();
        assert_eq!(words.tokens(), 301);
        assert_eq!(words.encode("Bread and butter and jam.").unwrap(), [1, 2, 258, 2, 0, 4]);
        assert_eq!(words.encode("").unwrap(), [0; 0]);
        assert_eq!(words.decode(&[1, 2, 258, 300, 299]), "bread and butter </s>");
        let again = tokeniser(directory.path(), WORDS).unwrap();
        assert_eq!(words.digest(), again.digest());
        assert_ne!(
            words.digest(),
            tokeniser(directory.path(), &WORDS.replace("bread", "toast")).unwrap().digest()
        );
    }

    #[test]
    fn what_a_run_leaves_out_of_a_tokeniser_is_not_handed_on() {
        let directory = tempfile::tempdir().unwrap();
        let whole = tokeniser(directory.path(), WORDS).unwrap();
        let read = whole.as_read().unwrap();
        // As others load it: they cut a text after two tokens, and end each with </s>.
        let theirs = |file: &[u8]| {
            Tokenizer::from_bytes(file).unwrap().encode("bread and butter", true).unwrap().get_ids().to_vec()
        };
        assert_eq!(theirs(whole.file()), [1, 300]);
        assert_eq!(theirs(&read), [1, 2, 258]);
        let again = tokeniser(directory.path(), &String::from_utf8(read.clone()).unwrap()).unwrap();
        assert!(
            again.as_read().unwrap() == read && again.file() == read,
            "the same bytes where nothing is left out"
        );
    }

    #[test]
    fn nothing_is_drawn_at_random() {
        let directory = tempfile::tempdir().unwrap();
        let pairs = tokeniser(directory.path(), PAIRS).unwrap();
        assert_eq!(pairs.tokens(), 6);
        let text = "ababab ab\n".repeat(1000);
        let numbers = [5, 4, 2, 4, 3].repeat(1000);
        assert_eq!(pairs.encode(&text).unwrap(), numbers);
        assert_eq!(pairs.decode(&numbers), text);
    }

    #[test]
    fn long_text_has_the_numbers_of_the_whole() {
        let directory = tempfile::tempdir().unwrap();
        let words = tokeniser(directory.path(), WORDS).unwrap();
        let text = "bread and\nbutter ".repeat(3 * BATCH * PIECE / 32);
        let numbers = words.encode(&text).unwrap();
        assert!(numbers == [1, 2, 258].repeat(text.len() / 17), "cut in a word");
    }

    /// Rules of Llama 2: a space before whatever they get, and no words.
    const LLAMA: &str = r#"{
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 0, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": false,
            "vocab": {"</s>": 0, "\u2581": 1, "a": 2, "b": 3, "\n": 4, "\u2581a": 5, "ab": 6, "\u2581ab": 7, "\u2581\u2581": 8,
                "<": 9, "/": 10, "s": 11, ">": 12},
            "merges": ["\u2581 \u2581", "a b", "\u2581 ab", "\u2581 a"]}
    }"#;

    #[test]
    fn no_words_are_added_where_a_long_text_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let llama = tokeniser(directory.path(), LLAMA).unwrap();
        // Lines, spaced words, and one word alone: whatever the library makes of the whole text.
        for text in ["ab ab a\n  b  ab\nab".repeat(60_000), "ab a  b".repeat(150_000), "aab".repeat(200_000)]
        {
            assert!(text.len() > 2 * PIECE);
            let whole = llama.rules.encode(text.as_str(), false).unwrap();
            let mut encoder = TextEncoder::new(&llama);
            let mut numbers = Vec::new();
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(100_003));
                rest = after;
                for part in encoder.push(piece, "text", rest.is_empty()).unwrap() {
                    numbers.extend(part.numbers);
                }
            }
            let last = encoder.finish().unwrap();
            assert_eq!(last.last().map(|part| (part.name, part.ends)), Some(("text", true)));
            numbers.extend(last.into_iter().flat_map(|part| part.numbers));
            assert!(numbers == whole.get_ids(), "{}", &text[..20]);
        }
    }

    #[test]
    fn control_words_are_text_unless_somebody_prompts_with_them() {
        let directory = tempfile::tempdir().unwrap();
        let llama = tokeniser(directory.path(), LLAMA).unwrap();
        assert_eq!(llama.encode("a</s>").unwrap(), [5, 0]);
        let llama = llama.with_words_as_text(true);
        assert_eq!(llama.encode("a</s>").unwrap(), [5, 9, 10, 11, 12]);
        assert_eq!(llama.with_words_as_text(false).encode("</s>").unwrap(), [0]);
    }

    /// [`WORDS`] with another normaliser.
    fn normalised(normaliser: &str) -> String {
        WORDS.replace(r#"{"type": "Lowercase"}"#, normaliser)
    }

    #[test]
    fn a_hostile_file_is_refused_and_ends_no_process() {
        let directory = tempfile::tempdir().unwrap();
        let map =
            |map: &str| normalised(&format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{map}"}}"#));
        let content = "b".repeat(100_000);
        let replace = normalised(&format!(
            r#"{{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{content}"}}"#
        ));
        // A trie that is longer than the file says 4 GiB; a letter becomes a book.
        for (json, words) in [(map("/////w=="), "precompiled_charsmap"), (replace, "times as long")] {
            let said = tokeniser(directory.path(), &json).err().unwrap();
            assert!(said.message.contains("is not a tokeniser (") && said.message.contains(words), "{said}");
            assert_eq!(said.exit, Exit::Environment);
        }
        // An empty trie, in which the library looks all the same; a length of which it makes no pieces.
        let fixed = WORDS.replace(r#"{"type": "Whitespace"}"#, r#"{"type": "FixedLength", "length": 0}"#);
        for json in [map("AAAAAA=="), fixed] {
            let said =
                tokeniser(directory.path(), &json).and_then(|rules| rules.encode("bread")).err().unwrap();
            assert!(said.message.contains("it contradicts itself"), "{said}");
        }
        // A decoder that counts past the beginning of a token.
        let strip = r#""decoder": {"type": "Strip", "content": ".", "start": 0, "stop": 99}"#;
        let strip = tokeniser(directory.path(), &WORDS.replace(r#""decoder": null"#, strip)).unwrap();
        assert_eq!(strip.decode(&[4]), "\u{fffd}");
        // A text is not repeated, whatever the file says of its ends.
        let once = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;
        let json = WORDS.replacen(once, &vec![once; 1000].join(","), 1);
        assert_eq!(tokeniser(directory.path(), &json).unwrap().encode("bread").unwrap(), [1]);
    }

    #[test]
    fn wrong_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let failure = |json: &str| tokeniser(directory.path(), json).err().unwrap();
        assert!(failure("{}").message.contains("tokenizer.json: is not a tokeniser"), "{}", failure("{}"));
        let many = failure(&WORDS.replace("258", "4000000000"));
        assert!(many.message.contains("knows 4000000001 token numbers"), "{many}");
        assert_eq!(many.exit, Exit::Environment);
        // The library numbers it 6, whatever the file says.
        let added = r#""added_tokens": [{"id": 3, "content": "<jam>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}]"#;
        let other = failure(&PAIRS.replace(r#""added_tokens": []"#, added));
        assert!(other.message.contains("another number than it says"), "{other}");
        let none = LoadedTokeniser::open(&directory.path().join("none.json")).err().unwrap();
        assert!(none.message.contains("none.json: cannot be read"), "{none}");
        let empty = directory.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let folder = LoadedTokeniser::open(&empty).err().unwrap();
        assert!(folder.message.contains("tokenizer.json: cannot be read (does not exist"), "{folder}");
        let mute = tokeniser(directory.path(), &WORDS.replace(r#""[UNK]": 0, "#, "")).unwrap();
        let unknown = mute.encode("jam").unwrap_err();
        assert!(unknown.message.contains("has no tokens for the text"), "{unknown}");
    }
}
