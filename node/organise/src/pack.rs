//! `muster data pack`: texts become a corpus with Merkle roots.

mod files;
mod passage;
mod saved;

use std::cell::RefCell;
use std::path::PathBuf;

use muster_core::manifest::Data;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::{self, RouterSize, SourceText, row_shares, unigram_bigram};

use self::passage::{Passage, Passages, Sources};
use super::tokenise::{ENDS, LoadedTokeniser};

/// Tokens before a window that a router reads, unless somebody says otherwise.
pub const ROUTE_TOKENS: u16 = 64;

/// What to pack.
#[derive(Clone, Debug)]
pub struct PackOptions {
    /// Files, or folders of which every regular file is taken, in order of their paths. With a column, folders that
    /// Python's `datasets` has saved.
    pub text: Vec<PathBuf>,
    /// The same for the held-out text. Without it, a saved dataset's own split for it is held out, else the last twentieth
    /// of the texts, or the last twentieth of a single file.
    pub held_out: Vec<PathBuf>,
    /// The column of saved datasets that holds the text; none for files.
    pub column: Option<String>,
    /// The `tokenizer.json` whose numbers the corpus holds; without it, bytes.
    pub tokeniser: Option<PathBuf>,
    /// The router for a mixture of several rows of experts.
    pub router: Option<RouterSize>,
    /// The new directory.
    pub out: PathBuf,
}

/// What was packed.
#[derive(Clone, Debug)]
pub struct PackedCorpus {
    /// What a manifest says of it.
    pub data: Data,
    /// Loss on the held-out text of a unigram model of the training text, in nats per token.
    pub unigram: f64,
    /// The same of a bigram model.
    pub bigram: f64,
    /// The share of the windows that each row has; empty without a router.
    pub shares: Vec<f64>,
}

/// Packs. `progress` is told bytes done and bytes in all.
///
/// # Errors
/// [`Failure`] naming the file that is missing, unreadable, no UTF-8, no tokeniser or no dataset, or the corpus whose
/// text is too short for its rows.
pub fn pack(options: &PackOptions, progress: &mut dyn FnMut(u64, u64)) -> Outcome<PackedCorpus> {
    let tokeniser = options.tokeniser.as_deref().map(LoadedTokeniser::open).transpose()?;
    let sources = match &options.column {
        None => files::sources(&options.text, &options.held_out)?,
        Some(column) => saved::sources(&options.text, &options.held_out, column)?,
    };
    let total = sources.bytes;
    let data = match tokeniser {
        None => {
            let read = |passages: Passages| passages.map(|passage| passage.map(joined));
            let (train, held_out) = (read(sources.train), read(sources.held_out));
            let progress = &mut |done| progress(done, total);
            dataset::pack_routed(train, held_out, &options.out, options.router, progress)?
        }
        Some(tokeniser) if options.column.is_some() && tokeniser.numbering().end.is_none() => {
            let path = options.tokeniser.as_deref().unwrap_or(&options.out).display();
            let tokens = ENDS.join(", ");
            return Err(Failure::usage(format!(
                "{path}: has no token that ends a text (one of {tokens}), so that the rows of a dataset would run into each \
                 other; add one to the tokeniser"
            )));
        }
        Some(tokeniser) => numbers(&tokeniser, sources, options, &mut |done| progress(done, total))?,
    };
    let corpus = dataset::Dataset::open(&options.out, &data)?;
    let (unigram, bigram) = unigram_bigram(&corpus);
    Ok(PackedCorpus { data, unigram, bigram, shares: row_shares(&corpus) })
}

/// A passage as bytes, in which a zero ends each text but the last, which the packer ends.
fn joined(passage: Passage) -> SourceText {
    let bytes =
        passage.texts.into_iter().reduce(|all, text| all + "\0" + &text).unwrap_or_default().into_bytes();
    SourceText { name: passage.name, bytes }
}

/// Packs the numbers of texts.
fn numbers(
    tokeniser: &LoadedTokeniser,
    sources: Sources,
    options: &PackOptions,
    progress: &mut dyn FnMut(u64),
) -> Outcome<Data> {
    let told = RefCell::new((0, progress));
    let read = |passage: Outcome<Passage>| {
        let Passage { name, texts } = passage?;
        let numbers = tokeniser.encode_all(&texts, &mut |bytes| {
            let (done, progress) = &mut *told.borrow_mut();
            *done += bytes;
            progress(*done);
        })?;
        Ok((name, numbers))
    };
    let [train, held_out] = [sources.train, sources.held_out].map(|passages| passages.map(read));
    dataset::pack_tokens(train, held_out, &options.out, &tokeniser.numbering(), options.router)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_replica::exit::Exit;

    use super::super::tokenise::tests::WORDS;
    use super::*;

    fn options(text: &[PathBuf], held_out: &[PathBuf], out: PathBuf) -> PackOptions {
        let (text, held_out) = (text.to_vec(), held_out.to_vec());
        PackOptions { text, held_out, column: None, tokeniser: None, router: None, out }
    }

    #[test]
    fn folders_are_walked_in_order_and_the_last_twentieth_is_held_out() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text");
        fs::create_dir_all(text.join("b")).unwrap();
        fs::write(text.join("c.rs"), "third").unwrap();
        fs::write(text.join("b/x.rs"), "second").unwrap();
        fs::write(text.join("a.rs"), "first").unwrap();
        let mut told = Vec::new();
        let out = directory.path().join("corpus");
        let packed = pack(&options(std::slice::from_ref(&text), &[], out.clone()), &mut |done, total| {
            told.push((done, total))
        })
        .unwrap();
        let corpus = dataset::Dataset::open(&out, &packed.data).unwrap();
        assert_eq!(corpus.train(), b"first\0second\0");
        assert_eq!(corpus.held_out(), b"third\0");
        assert_eq!(told.len(), 3);
        assert!(packed.unigram > 0.0 && packed.bigram > 0.0);
        let again = pack(&options(&[text], &[], out), &mut |_, _| ()).unwrap_err();
        assert!(again.message.contains("already holds something"), "{again}");
    }

    #[test]
    fn a_single_file_gives_its_tail_between_characters() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("one.txt");
        fs::write(&file, "ä".repeat(100)).unwrap();
        let out = directory.path().join("corpus");
        let packed = pack(&options(&[file], &[], out.clone()), &mut |_, _| ()).unwrap();
        let corpus = dataset::Dataset::open(&out, &packed.data).unwrap();
        assert_eq!(corpus.held_out(), ["ä".repeat(5).as_bytes(), b"\0"].concat());
        assert_eq!(corpus.train().len(), 191);
    }

    #[test]
    fn the_same_text_and_tokeniser_give_the_same_roots() {
        let directory = tempfile::tempdir().unwrap();
        let (file, rules) = (directory.path().join("one.txt"), directory.path().join("tokenizer.json"));
        fs::write(&file, "Bread and butter.\n".repeat(40)).unwrap();
        fs::write(&rules, WORDS).unwrap();
        let packed = ["one", "two"].map(|name| {
            let one = std::slice::from_ref(&file);
            let text = options(one, one, directory.path().join(name));
            let mut told = Vec::new();
            let options = PackOptions { tokeniser: Some(rules.clone()), ..text };
            let packed = pack(&options, &mut |done, total| told.push((done, total))).unwrap();
            assert_eq!(told, [(720, 1440), (1440, 1440)]);
            assert_eq!(fs::read(options.out.join(dataset::TOKENISER)).unwrap(), WORDS.as_bytes());
            assert_eq!(dataset::described(&options.out).unwrap(), packed.data);
            packed
        });
        let [one, two] = packed;
        assert_eq!(one.data, two.data);
        assert_eq!((one.data.kinds(), one.data.tokens()), (301, 161), "each text ends with </s>");
        let corpus = dataset::Dataset::open(&directory.path().join("one"), &one.data).unwrap();
        assert_eq!(corpus.window(1, 4), [1, 2, 258, 4, 1]);
        assert_eq!(corpus.window(39, 4), [1, 2, 258, 4, 300]);
        assert!(one.bigram > 0.0 && one.bigram < one.unigram, "{} {}", one.bigram, one.unigram);
    }

    #[test]
    fn rows_are_made_of_bytes_and_of_token_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let (file, rules) = (directory.path().join("one.txt"), directory.path().join("tokenizer.json"));
        let text: Vec<String> =
            (0..4000).map(|line| format!("{}\n", ["Bread and butter.", "Butter!"][line / 2000])).collect();
        fs::write(&file, text.concat()).unwrap();
        fs::write(&rules, WORDS).unwrap();
        for tokeniser in [None, Some(rules)] {
            let name = if tokeniser.is_some() { "numbers" } else { "bytes" };
            let router = Some(RouterSize { rows: 2, tokens: 16 });
            let one = std::slice::from_ref(&file);
            let plain = options(one, one, directory.path().join(name));
            let options = PackOptions { tokeniser, router, ..plain };
            let packed = pack(&options, &mut |_, _| ()).unwrap();
            let named = packed.data.router.clone().unwrap();
            assert_eq!((named.rows, named.tokens, packed.shares.len()), (2, 16, 2));
            assert!((packed.shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{:?}", packed.shares);
            assert_eq!(dataset::described(&options.out).unwrap(), packed.data);
            // A line that occurs thousands of times has few kinds of places, each of one row.
            assert!(
                packed.shares.iter().all(|share| (0.3..0.7).contains(share)),
                "{name} {:?}",
                packed.shares
            );
        }
        let one = std::slice::from_ref(&file);
        let router = Some(RouterSize { rows: 64, tokens: 4096 });
        let options = PackOptions { router, ..options(one, one, directory.path().join("short")) };
        let failure = pack(&options, &mut |_, _| ()).unwrap_err();
        assert!(failure.message.contains("short: "), "{failure}");
        assert!(failure.message.contains("too few for 64 rows that read 4096"), "{failure}");
    }

    #[test]
    fn empty_files_are_texts_of_nothing_and_never_all_there_is() {
        let directory = tempfile::tempdir().unwrap();
        let [empty, first, last] = ["a", "b", "c"].map(|name| directory.path().join(name));
        let texts = [(&empty, ""), (&first, "first"), (&last, "last")];
        texts.iter().for_each(|(path, text)| fs::write(path, text).unwrap());
        let packed = |text: &[&PathBuf], held_out: &[&PathBuf], out: &str| {
            let [text, held_out] =
                [text, held_out].map(|paths| paths.iter().map(|path| (*path).clone()).collect());
            let out = directory.path().join(out);
            let options =
                PackOptions { text, held_out, column: None, tokeniser: None, router: None, out: out.clone() };
            let packed = pack(&options, &mut |_, _| ())?;
            Ok::<_, Failure>(dataset::Dataset::open(&out, &packed.data).unwrap())
        };
        let corpus = packed(&[&empty, &first, &last], &[], "some").unwrap();
        assert_eq!((corpus.train(), corpus.held_out()), (&b"\0first\0"[..], &b"last\0"[..]));
        for (text, held_out) in [(&[&empty][..], &[&last][..]), (&[&first], &[&empty]), (&[&empty], &[])] {
            let failure = packed(text, held_out, "none").unwrap_err();
            assert!(failure.message.contains("at least one text that is not empty"), "{failure}");
            assert!(!directory.path().join("none").exists());
        }
    }

    #[test]
    fn bad_text_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("binary");
        fs::write(&file, [0xFF, 0xFE]).unwrap();
        let out = directory.path().join("corpus");
        let failure = pack(
            &options(std::slice::from_ref(&file), std::slice::from_ref(&file), out.clone()),
            &mut |_, _| (),
        )
        .unwrap_err();
        assert!(failure.message.contains("binary") && failure.message.contains("UTF-8"), "{failure}");
        assert_eq!(failure.exit, Exit::Environment);
        assert!(!out.exists());
        let failure = pack(&options(&[directory.path().join("none")], &[], out), &mut |_, _| ()).unwrap_err();
        assert!(failure.message.contains("none: cannot be read"), "{failure}");
    }
}
