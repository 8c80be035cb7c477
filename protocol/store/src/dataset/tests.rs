use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_core::hash::{Domain, Hasher};
use muster_core::limits::PAGE_CHUNKS;
use muster_core::limits::{DATA_BYTES, PARAMETER_BYTES};
use muster_core::manifest::TokeniserFile;
use muster_core::merkle;
use muster_core::messages::wire::{BULK_BYTES, DataQuery, Request};
use muster_core::state::real_bytes;

use super::names::{ABOUT, HELD_OUT, TRAIN};
use super::*;
use crate::error::Kind;
use crate::files;

fn text(name: &str, bytes: &[u8]) -> Result<SourceText> {
    Ok(SourceText { name: name.into(), bytes: bytes.to_vec() })
}

fn train(dataset: &Dataset) -> Vec<u8> {
    dataset.read(DataFile::Training, 0..u64::MAX).unwrap()
}

fn held_out(dataset: &Dataset) -> Vec<u8> {
    dataset.read(DataFile::HeldOut, 0..u64::MAX).unwrap()
}

/// A corpus of three chunks and a half, in a directory of its own.
fn packed() -> (tempfile::TempDir, PathBuf, Data) {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let long: Vec<u8> = (0..14_000u32).map(|place| b'a' + (place % 23) as u8).collect();
    let texts = [text("a.rs", &long), text("b\nroot: x", b"second")];
    let data = pack(texts, [text("c.rs", b"held out text")], &out, &mut |_| ()).unwrap();
    (directory, out, data)
}

#[test]
fn a_pack_is_its_texts_in_order() {
    let (_directory, out, data) = packed();
    assert_eq!((data.bytes, data.held_out_bytes), (14_000 + 1 + 6 + 1, 14));
    let dataset = Dataset::open(&out, &data).unwrap();
    assert!(train(&dataset).ends_with(b"\0second\0"));
    assert_eq!(held_out(&dataset), b"held out text\0");
    assert_eq!(dataset.data(), data);
    assert_eq!(described(&out).unwrap(), data);
    assert_eq!(files::names(&out).unwrap(), [ABOUT, HELD_OUT, TRAIN]);
    let about = fs::read_to_string(out.join(ABOUT)).unwrap();
    assert!(about.contains("     14000 a.rs\n         6 b\u{fffd}root: x\n"), "{about}");
}

#[test]
fn progress_counts_all_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let out = directory.path().join("corpus");
    pack([text("a", b"12"), text("b", b"3")], [text("c", b"4")], &out, &mut |bytes| seen.push(bytes))
        .unwrap();
    assert_eq!(seen, [3, 5, 7]);
}

#[test]
fn one_changed_byte_is_refused_by_name() {
    let (_directory, out, data) = packed();
    for name in [TRAIN, HELD_OUT] {
        let path = out.join(name);
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = Dataset::open(&out, &data).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert_eq!(error.path(), path);
        };
        for place in (0..whole.len()).step_by(whole.len() / 13) {
            let mut forged = whole.clone();
            forged[place] ^= 1;
            refused(&forged);
            refused(&whole[..place]);
        }
        refused(&[whole.as_slice(), b"x"].concat());
        fs::remove_file(&path).unwrap();
        assert_eq!(Dataset::open(&out, &data).unwrap_err().kind(), Kind::Missing);
        fs::write(&path, &whole).unwrap();
    }
    fs::write(out.join(ABOUT), b"Muster corpus 1\ntraining bytes: 7\n").unwrap();
    assert_eq!(described(&out).unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(described(&out.join("nowhere")).unwrap_err().kind(), Kind::Missing);
}

#[test]
fn a_failed_pack_leaves_nothing_and_an_old_one_stays() {
    let (directory, out, data) = packed();
    let again = pack([text("x", b"x")], [text("y", b"y")], &out, &mut |_| ()).unwrap_err();
    assert_eq!(again.kind(), Kind::Refused);
    Dataset::open(&out, &data).unwrap();
    let other = directory.path().join("other");
    let missing = SourceText::read(&directory.path().join("absent.txt"), "absent".into());
    let error = pack([text("x", b"x"), missing], [text("y", b"y")], &other, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("absent.txt: does not exist"), "{error}");
    let error = pack([text("x", b"x")], [], &other, &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert_eq!(files::names(directory.path()).unwrap(), ["corpus"]);
    fs::write(directory.path().join("latin"), b"caf\xe9").unwrap();
    let error = SourceText::read(&directory.path().join("latin"), String::new()).unwrap_err();
    assert!(error.to_string().contains("is not UTF-8 text (byte 3)"), "{error}");
}

#[test]
fn what_a_killed_packer_left_is_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let (out, half) = (directory.path().join("corpus"), directory.path().join(".corpus.half"));
    fs::create_dir(&half).unwrap();
    fs::write(half.join(TRAIN), b"half of a te").unwrap();
    fs::write(half.join("train.bin.3.tmp"), b"ha").unwrap();
    assert_eq!(described(&out).unwrap_err().kind(), Kind::Missing);
    fs::create_dir(&out).unwrap();
    let lock = File::create(half.join("lock")).unwrap();
    lock.lock().unwrap();
    let packs = || pack([text("x", b"x")], [text("y", b"y")], &out, &mut |_| ());
    assert_eq!(packs().unwrap_err().kind(), Kind::Locked);
    drop(lock);
    let data = packs().unwrap();
    Dataset::open(&out, &data).unwrap();
    assert_eq!(files::names(&out).unwrap(), [ABOUT, HELD_OUT, TRAIN]);
    assert_eq!(files::names(directory.path()).unwrap(), ["corpus"]);
}

#[test]
fn data_1_what_changes_after_a_file_was_opened_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let long: Vec<u8> = (0..200_000u32).map(|place| b'a' + (place % 23) as u8).collect();
    let data = pack([text("x", &long)], [text("y", b"y")], &out, &mut |_| ()).unwrap();
    let dataset = Dataset::open(&out, &data).unwrap();
    let mut file = fs::File::options().write(true).open(out.join(TRAIN)).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(150_000)).unwrap();
    std::io::Write::write_all(&mut file, b"!").unwrap();
    let fails = |window| dataset.window(window, 100).unwrap_err();
    assert_eq!(dataset.window(5, 100).unwrap()[..3], [500, 501, 502].map(|place| u32::from(long[place])));
    assert_eq!((fails(1450).kind(), fails(1450).path()), (Kind::Corrupt, out.join(TRAIN).as_path()));
    // The two ends of a window are on different pages, of which one has changed.
    assert!((131_000..131_101).contains(&(2 << 16)));
    assert_eq!(fails(1310).kind(), Kind::Corrupt);
    assert_eq!(dataset.chunks(DataFile::Training, 32, 16).unwrap_err().kind(), Kind::Corrupt);
    file.set_len(10).unwrap();
    assert_eq!(fails(1990).kind(), Kind::Corrupt);
}

#[test]
fn windows_overlap_by_one() {
    let (_directory, out, data) = packed();
    let dataset = Dataset::open(&out, &data).unwrap();
    let bytes: Vec<u32> = train(&dataset).iter().map(|byte| u32::from(*byte)).collect();
    assert_eq!(dataset.window(0, 16).unwrap(), bytes[..17]);
    assert_eq!(dataset.window(5, 16).unwrap(), bytes[80..97]);
    assert_eq!(dataset.window(u64::MAX, 16).unwrap(), [0; 17]);
    let held_out: Vec<u32> = held_out(&dataset).iter().map(|byte| u32::from(*byte)).collect();
    assert_eq!(dataset.held_out_windows(4, 9).unwrap(), [&held_out[0..5], &held_out[4..9], &held_out[8..13]]);
    assert_eq!(dataset.held_out_windows(4, 2).unwrap(), [&held_out[0..5], &held_out[4..9]]);
    assert_eq!(dataset.held_out_windows(2, 3).unwrap(), [&held_out[0..3], &held_out[4..7], &held_out[8..11]]);
    assert!(dataset.held_out_windows(14, 9).unwrap().is_empty());
}

#[test]
fn chunks_are_proved() {
    let (_directory, out, data) = packed();
    let dataset = Dataset::open(&out, &data).unwrap();
    assert_eq!(dataset.chunks(DataFile::Training, 0, 1).unwrap().len(), DATA_CHUNK_BYTES);
    assert_eq!(dataset.chunks(DataFile::Training, 3, 9).unwrap(), &train(&dataset)[3 * DATA_CHUNK_BYTES..]);
    assert!(dataset.chunks(DataFile::Training, u64::MAX, u32::MAX).unwrap().is_empty());
    assert_eq!(dataset.chunks(DataFile::HeldOut, 0, 1).unwrap(), held_out(&dataset));
    for chunk in 0..4 {
        let leaf = merkle::leaf(chunk, &dataset.chunks(DataFile::Training, chunk, 1).unwrap());
        dataset
            .train
            .prove(&dataset.upper(), chunk)
            .unwrap()
            .unwrap()
            .verify(&data.root, 4, chunk, leaf)
            .unwrap();
    }
    assert_eq!(dataset.prove(&dataset.upper(), 4).unwrap(), None);
}

/// A stranger with a corpus, who may lie about a file.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) corpus: Dataset,
    lie: Option<DataFile>,
    /// First page and pages of each query.
    asked: Mutex<Vec<(u64, u64)>>,
    gone: AtomicBool,
}

impl Stranger {
    pub(super) fn of(corpus: Dataset, lie: Option<DataFile>) -> Arc<Self> {
        Arc::new(Self { corpus, lie, asked: Mutex::default(), gone: AtomicBool::default() })
    }

    fn answer(&self, request: &Request) -> Vec<u8> {
        let (file, mut bytes) = match request {
            Request::Data(query) => {
                (query.file, self.corpus.held_chunks(query.file, query.first, query.count).unwrap())
            }
            Request::Outline(query) => {
                (query.file, self.corpus.outline_chunks(query.file, query.first, query.count))
            }
            _ => panic!("nothing else is wanted"),
        };
        if self.lie == Some(file) {
            bytes[7] ^= 1;
        }
        bytes
    }

    /// What a newcomer makes of this stranger: all of the corpus.
    pub(super) fn brings(self: &Arc<Self>, copy: &std::path::Path, data: &Data) -> Result<Dataset> {
        if !copy.exists() {
            let mut assembly = Assembly::new(copy, data.clone())?;
            while let Some(request) = assembly.wanted() {
                assembly.put(&self.answer(&request))?.unwrap();
            }
            assembly.finish()?;
        }
        let supply: Arc<dyn Supply> = self.clone();
        let dataset = Dataset::open_partial(copy, data, u64::MAX, &supply)?;
        while dataset.fetch_given()? || dataset.fetch_ahead(0)? {}
        Ok(dataset)
    }
}

impl Supply for Stranger {
    fn chunks(&self, query: DataQuery, is_good: Arc<IsGood>) -> core::result::Result<Vec<u8>, Lack> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(Lack::Nobody);
        }
        self.asked.lock().unwrap().push((query.first / PAGE_CHUNKS, u64::from(query.count) / PAGE_CHUNKS));
        let answer = self.answer(&Request::Data(query));
        if is_good(&answer) { Ok(answer) } else { Err(Lack::OtherBytes) }
    }
}

#[test]
fn a_corpus_comes_from_a_stranger() {
    let (directory, out, data) = packed();
    let copy = directory.path().join("copy");
    let assembly = || Assembly::new(&copy, data.clone()).unwrap();
    let liar = Stranger::of(Dataset::open(&out, &data).unwrap(), Some(DataFile::Training));
    let mut lied_to = assembly();
    assert_eq!(Assembly::new(&copy, data.clone()).unwrap_err().kind(), Kind::Locked);
    while let Some(request) = lied_to.wanted() {
        lied_to.put(&liar.answer(&request)).unwrap().unwrap();
    }
    let error = lied_to.finish().unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Corrupt, copy.join("train.bin.outline").as_path()));
    assert_eq!(assembly().finish().unwrap_err().kind(), Kind::Corrupt);
    assert_eq!(files::names(directory.path()).unwrap(), ["corpus"], "nothing of a lie is kept");

    let source = Stranger::of(Dataset::open(&out, &data).unwrap(), None);
    let mut honest = assembly();
    while let Some(request) = honest.wanted() {
        let bytes = source.answer(&request);
        assert!(honest.put(&bytes[1..]).unwrap().is_err());
        assert!(honest.put(&[bytes.as_slice(), b"x"].concat()).unwrap().is_err());
        honest.put(&bytes).unwrap().unwrap();
    }
    assert!(honest.put(b"").unwrap().is_err());
    honest.finish().unwrap();
    assert!(!is_whole(&copy, &data).unwrap());
    assert_eq!(Dataset::open(&copy, &data).unwrap_err().kind(), Kind::Missing);
    // DATA-7: bytes that were not committed to are not kept, and somebody else is asked.
    let supply: Arc<dyn Supply> = liar;
    let lied_to = Dataset::open_partial(&copy, &data, u64::MAX, &supply).unwrap();
    let error = lied_to.window(0, 16).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Corrupt, copy.join(TRAIN).as_path()));
    assert_eq!(lied_to.held(), 0);

    assert_eq!(source.brings(&copy, &data).unwrap().data(), data);
    let whole = Dataset::open(&copy, &described(&copy).unwrap()).unwrap();
    assert_eq!(train(&whole), train(&source.corpus));
    assert_eq!(Assembly::new(&copy, data.clone()).unwrap_err().kind(), Kind::Refused);
    let huge = Data { bytes: DATA_BYTES + 1, ..data };
    assert_eq!(Assembly::new(&directory.path().join("huge"), huge).unwrap_err().kind(), Kind::Refused);
}

/// A stranger with 40 pages and a bit, and a newcomer that has nothing of them yet.
fn long() -> (tempfile::TempDir, PathBuf, Data, Arc<Stranger>) {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let long: Vec<u8> = (0..40 * (1 << 16) + 5u32).map(|place| b'a' + (place / 7 % 23) as u8).collect();
    let data = pack([text("x", &long)], [text("y", b"yes")], &out, &mut |_| ()).unwrap();
    let stranger = Stranger::of(Dataset::open(&out, &data).unwrap(), None);
    let copy = directory.path().join("copy");
    let mut assembly = Assembly::new(&copy, data.clone()).unwrap();
    while let Some(request) = assembly.wanted() {
        assembly.put(&stranger.answer(&request)).unwrap().unwrap();
    }
    assembly.finish().unwrap();
    (directory, copy, data, stranger)
}

#[test]
fn data_10_text_comes_when_it_is_needed_and_what_came_is_there_after_a_kill() {
    let (_directory, copy, data, stranger) = long();
    let supply: Arc<dyn Supply> = stranger.clone();
    let open = |room| Dataset::open_partial(&copy, &data, room, &supply).unwrap();
    let asked = || std::mem::take(&mut *stranger.asked.lock().unwrap());
    let dataset = open(u64::MAX);
    let needed = [5, 1300, 2000];
    assert_eq!(dataset.windows(&needed, 1000).unwrap(), stranger.corpus.windows(&needed, 1000).unwrap());
    let mut pages = asked();
    pages.sort_unstable();
    assert_eq!(pages, [(0, 1), (19, 1), (30, 1)], "pages that windows are on, and no others");
    assert_eq!(dataset.windows(&needed, 1000).unwrap(), stranger.corpus.windows(&needed, 1000).unwrap());
    drop(dataset);
    let dataset = open(u64::MAX);
    assert_eq!(dataset.held(), 3 << 16);
    dataset.windows(&needed, 1000).unwrap();
    assert_eq!(asked(), [], "all of it is there after a restart");
    // Others get what is here, and have nothing fetched.
    assert_eq!(dataset.held_chunks(DataFile::Training, 19 * 16 + 3, 2).unwrap().len(), 8192);
    assert_eq!(dataset.held_chunks(DataFile::Training, 20 * 16 - 1, 2), None);
    assert_eq!(
        dataset.outline_chunks(DataFile::Training, 0, 9),
        stranger.corpus.outline_chunks(DataFile::Training, 0, 9)
    );
    assert_eq!(asked(), []);
    // Ahead of need: up to the page that is there, and around the end.
    assert!(dataset.fetch_ahead(28 << 16).unwrap() && dataset.fetch_ahead(28 << 16).unwrap());
    assert_eq!(asked(), [(28, 2), (31, 10)]);
    while dataset.fetch_ahead(28 << 16).unwrap() {}
    assert_eq!(asked(), [(1, 16), (17, 2), (20, 8), (0, 1)]);
    assert_eq!(dataset.held(), data.all_bytes());
    assert_eq!(train(&Dataset::open(&copy, &data).unwrap()), train(&stranger.corpus));
}

#[test]
fn data_10_no_more_is_kept_than_there_is_room_for_and_nothing_fails_for_it() {
    let (_directory, copy, data, stranger) = long();
    let supply: Arc<dyn Supply> = stranger.clone();
    let dataset = Dataset::open_partial(&copy, &data, 10 << 16, &supply).unwrap();
    while dataset.fetch_ahead(3 << 16).unwrap() {}
    assert_eq!(dataset.held(), (10 << 16) + 4, "ten pages, and the held-out text");
    assert_eq!(dataset.window(2000, 1000).unwrap(), stranger.corpus.window(2000, 1000).unwrap());
    assert_eq!(dataset.held(), (10 << 16) + 4);
    stranger.gone.store(true, Ordering::Relaxed);
    let error = dataset.window(20, 1000).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Missing, copy.join(TRAIN).as_path()));
    assert!(error.to_string().contains("nobody has given the bytes from 0 on in time"), "{error}");
    dataset.window(300, 1000).unwrap();
}

#[test]
fn data_10_a_page_that_a_disk_has_lost_is_fetched_again() {
    let (_directory, copy, data, stranger) = long();
    let supply: Arc<dyn Supply> = stranger.clone();
    let dataset = stranger.brings(&copy, &data).unwrap();
    drop(dataset);
    // As after a power failure: the map says that it is there, and the file has a hole.
    let mut file = fs::File::options().write(true).open(copy.join(TRAIN)).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(7 << 16)).unwrap();
    std::io::Write::write_all(&mut file, &[0; 999]).unwrap();
    assert_eq!(Dataset::open(&copy, &data).unwrap_err().kind(), Kind::Corrupt);
    let dataset = Dataset::open_partial(&copy, &data, u64::MAX, &supply).unwrap();
    assert_eq!(dataset.held_chunks(DataFile::Training, 7 * 16, 1), None, "nobody is given what is damaged");
    assert_eq!(dataset.window(459, 1000).unwrap(), stranger.corpus.window(459, 1000).unwrap());
    assert_eq!(dataset.held_chunks(DataFile::Training, 7 * 16, 16).unwrap().len(), 1 << 16);
    Dataset::open(&copy, &data).unwrap();
}

#[test]
fn data_7_an_outline_of_many_queries_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let pages = (BULK_BYTES as u64 / 32) * 2 + 5;
    let nodes: Vec<Digest> = (0..pages).map(|page| Digest([(page % 251) as u8; 32])).collect();
    let root = merkle::Outline::new(pages * PAGE_CHUNKS, nodes.clone()).unwrap().root();
    let data = Data { root, bytes: pages << 16, ..Dataset::of_bytes(vec![1; 9], vec![2; 9]).data() };
    let bytes: Vec<u8> = nodes.iter().flat_map(|node| node.0).collect();
    let copy = directory.path().join("copy");
    let mut assembly = Assembly::new(&copy, data.clone()).unwrap();
    assembly.put(&bytes[..BULK_BYTES]).unwrap().unwrap();
    // What came whole is there after a kill, and the rest is asked for.
    drop(assembly);
    let half = fs::File::options().append(true).open(directory.path().join(".copy.half/train.bin.outline"));
    std::io::Write::write_all(&mut half.unwrap(), b"half an answer").unwrap();
    let mut assembly = Assembly::new(&copy, data).unwrap();
    let first = (BULK_BYTES / DATA_CHUNK_BYTES) as u64;
    let query = DataQuery { file: DataFile::Training, first, count: first as u32 };
    assert_eq!(assembly.wanted(), Some(Request::Outline(query)));
    assembly.put(&bytes[BULK_BYTES..2 * BULK_BYTES]).unwrap().unwrap();
    assembly.put(&bytes[2 * BULK_BYTES..]).unwrap().unwrap();
    let held_out = Dataset::of_bytes(vec![1; 9], vec![2; 9]).outline_chunks(DataFile::HeldOut, 0, 1);
    assembly.put(&held_out).unwrap().unwrap();
    assert_eq!(assembly.wanted(), None);
    assembly.finish().unwrap();
}

/// A tokeniser's file that knows so many numbers.
fn tokeniser(tokens: u32) -> Vec<u8> {
    format!(r#"{{"model": {{"vocab": {{"x": 0, "a": {}, "b": 1}}}}}}"#, tokens - 1).into_bytes()
}

fn numbered(place: &std::path::Path, tokens: u32, end: Option<u32>) -> Result<Data> {
    let numbering = Numbering { file: &tokeniser(tokens), tokens, end };
    let texts = |name: &str, numbers: &[u32]| [Ok((name.to_owned(), numbers.to_vec()))];
    let train = [texts("a.txt", &[1, 258, 3]), texts("b.txt", &[4])].into_iter().flatten();
    pack_tokens(train, texts("c.txt", &[5, 299, 7, 8]), place, &numbering, None)
}

#[test]
fn windows_of_token_numbers() {
    let directory = tempfile::tempdir().unwrap();
    for (tokens, size, name) in [(300, 2, "short"), (70_000, 4, "long")] {
        let out = directory.path().join(name);
        let data = numbered(&out, tokens, Some(0)).unwrap();
        assert_eq!((data.bytes, data.held_out_bytes), (6 * size, 5 * size));
        assert_eq!((data.tokens(), data.kinds()), (6, tokens));
        let dataset = Dataset::open(&out, &data).unwrap();
        assert_eq!(dataset.data(), data);
        assert_eq!(described(&out).unwrap(), data);
        assert_eq!(files::names(&out).unwrap(), [ABOUT, HELD_OUT, TOKENISER, TRAIN]);
        assert_eq!(dataset.window(0, 2).unwrap(), [1, 258, 3]);
        assert_eq!(dataset.window(1, 2).unwrap(), [3, 0, 4]);
        assert_eq!(dataset.window(2, 2).unwrap(), [4, 0, 0]);
        assert_eq!(dataset.window(u64::MAX / 2, 2).unwrap(), [0; 3]);
        assert_eq!(dataset.held_out_windows(2, 9).unwrap(), [[5, 299, 7], [7, 8, 0]]);
        assert_eq!(dataset.held_out_windows(5, 9).unwrap(), [[0; 6]; 0]);
        let (unigram, bigram) = unigram_bigram(&dataset).unwrap();
        assert!(unigram > 0.0 && bigram > 0.0);
    }
    let unended = numbered(&directory.path().join("unended"), 300, None).unwrap();
    assert_eq!((unended.bytes, unended.held_out_bytes), (8, 8));
}

#[test]
fn a_corpus_knows_its_tokeniser() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let data = numbered(&out, 300, None).unwrap();
    let Tokeniser::File(file) = &data.tokeniser else { panic!("token numbers") };
    assert_eq!(file.tokens, 300);
    let whole = fs::read(out.join(TOKENISER)).unwrap();
    // DATA-4: another file, of whatever length, is not the tokeniser.
    for other in [tokeniser(301).as_slice(), b"another", b""] {
        fs::write(out.join(TOKENISER), other).unwrap();
        assert_eq!(described(&out).unwrap(), data);
        let error = Dataset::open(&out, &data).unwrap_err();
        assert_eq!((error.kind(), error.path()), (Kind::Corrupt, out.join(TOKENISER).as_path()));
    }
    fs::remove_file(out.join(TOKENISER)).unwrap();
    assert_eq!(Dataset::open(&out, &data).unwrap_err().kind(), Kind::Missing);
    fs::write(out.join(TOKENISER), whole).unwrap();
    let about = fs::read_to_string(out.join(ABOUT)).unwrap();
    fs::write(out.join(ABOUT), about.replace("token numbers: 300", "token numbers: many")).unwrap();
    assert_eq!(described(&out).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn unknown_token_numbers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let error = numbered(&out, 299, None).unwrap_err();
    assert!(error.to_string().contains("c.txt: has token 299"), "{error}");
    assert!(numbered(&out, 300, Some(300)).unwrap_err().to_string().contains("token 300"));
    assert!(!out.exists());
    let data = numbered(&out, 300, None).unwrap();
    // DATA-5: the roots are right, the numbers are not.
    let fewer = |tokens| {
        let Tokeniser::File(file) = data.tokeniser.clone() else { panic!("token numbers") };
        Data { tokeniser: Tokeniser::File(TokeniserFile { tokens, ..file }), ..data.clone() }
    };
    let error = Dataset::open(&out, &fewer(301)).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Refused, out.join(TOKENISER).as_path()));
    assert!(
        error.to_string().contains("data.tokeniser.tokens is 301, but this file knows 300 numbers"),
        "{error}"
    );
    let error = Dataset::open(&out, &fewer(299)).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Refused, out.join(HELD_OUT).as_path()));
    assert!(error.to_string().contains("token 1 is number 299"), "{error}");
    let error = Dataset::open(&out, &fewer(258)).unwrap_err();
    assert_eq!(error.path(), out.join(TRAIN));

    let copy = directory.path().join("copy");
    let source = Stranger::of(Dataset::open(&out, &data).unwrap(), None);
    // DATA-4: the greatest number of the tokeniser's file.
    assert_eq!(source.brings(&copy, &fewer(301)).unwrap_err().kind(), Kind::Refused);
    assert!(!copy.exists());
    // DATA-5: also of a page that comes when it is needed.
    let numbers = tokeniser(299);
    let digest = Hasher::new(Domain::TOKENISER).part(&numbers).finish();
    let file = TokeniserFile { digest, bytes: numbers.len() as u32, tokens: 299 };
    let committed = Data { tokeniser: Tokeniser::File(file), ..data.clone() };
    let other = Dataset {
        tokeniser: committed.tokeniser.clone(),
        tokeniser_file: numbers,
        ..Dataset::of_bytes(train(&source.corpus), held_out(&source.corpus))
    };
    let error = Stranger::of(other, None).brings(&directory.path().join("other"), &committed).unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("token 1 is number 299"), "{error}");
    assert_eq!(source.brings(&copy, &data).unwrap().window(0, 1).unwrap(), [1, 258]);
    assert_eq!(described(&copy).unwrap(), data);
    assert_eq!(fs::read(copy.join(TOKENISER)).unwrap(), tokeniser(300), "fetched with the text");
}

/// A corpus with parameters of three chunks and a bit.
fn begun() -> (tempfile::TempDir, PathBuf, Data, Vec<f32>) {
    let (directory, out, data) = packed();
    let parameters: Vec<f32> = (0..3 * 1024 + 7).map(|place| -0.0 + place as f32 * -0.25).collect();
    add_parameters(&out, &parameters).unwrap();
    let start = Start::Given(committed_parameters(&parameters));
    (directory, out, Data { start, ..data }, parameters)
}

#[test]
fn given_parameters_come_back_to_the_bit() {
    let (_directory, out, data, parameters) = begun();
    assert_eq!(parameters[0].to_bits(), (-0.0f32).to_bits());
    let dataset = Dataset::open(&out, &data).unwrap();
    assert_eq!(dataset.data(), data);
    assert_eq!(real_bytes(&dataset.given().unwrap().unwrap()), real_bytes(&parameters));
    assert_eq!(dataset.chunks(DataFile::Parameters, 3, 9).unwrap().len(), 28);
    let Start::Given(file) = data.start.clone() else { panic!("given") };
    let given = dataset.given.as_ref().unwrap();
    let leaf = merkle::leaf(3, &dataset.chunks(DataFile::Parameters, 3, 1).unwrap());
    given.prove(&given.upper(), 3).unwrap().unwrap().verify(&file.root, 4, 3, leaf).unwrap();
    let drawn = Data { start: Start::Drawn, ..data };
    let dataset = Dataset::open(&out, &drawn).unwrap();
    assert_eq!(
        (dataset.given().unwrap(), dataset.chunks(DataFile::Parameters, 0, 9).unwrap()),
        (None, vec![])
    );
}

#[test]
fn changed_parameters_are_refused_by_name() {
    let (_directory, out, data, _) = begun();
    let path = out.join(PARAMETERS);
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], kind| {
        fs::write(&path, bytes).unwrap();
        let error = Dataset::open(&out, &data).unwrap_err();
        assert_eq!((error.kind(), error.path()), (kind, path.as_path()), "{error}");
    };
    // DATA-1: any changed bit, the sign of a zero among them, gives another root.
    for place in (0..whole.len()).step_by(997).chain([3]) {
        let mut forged = whole.clone();
        forged[place] ^= 0x80;
        refused(&forged, Kind::Corrupt);
        refused(&whole[..place], Kind::Corrupt);
    }
    refused(&[whole.as_slice(), &[0; 4]].concat(), Kind::Corrupt);
    fs::remove_file(&path).unwrap();
    assert_eq!(Dataset::open(&out, &data).unwrap_err().kind(), Kind::Missing);
}

#[test]
fn parameters_that_are_not_finite_are_refused_though_committed() {
    let (directory, out, data, mut parameters) = begun();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        parameters[2000] = bad;
        assert_eq!(add_parameters(&out, &parameters).unwrap_err().kind(), Kind::Refused);
        fs::write(out.join(PARAMETERS), real_bytes(&parameters)).unwrap();
        let data = Data { start: Start::Given(committed_parameters(&parameters)), ..data.clone() };
        // DATA-6: also from a stranger.
        let error = Dataset::open(&out, &data).unwrap_err();
        assert!(error.kind() == Kind::Refused && error.to_string().contains("parameter 2000 is"), "{error}");
        let drawn = Dataset::open(&out, &Data { start: Start::Drawn, ..data.clone() }).unwrap();
        let from = Dataset { given: Some(Committed::new(real_bytes(&parameters).into_owned())), ..drawn };
        let copy = directory.path().join(bad.to_string());
        let error = Stranger::of(from, None).brings(&copy, &data).unwrap_err();
        assert!(error.kind() == Kind::Refused && error.to_string().contains("parameter 2000 is"), "{error}");
    }
}

#[test]
fn parameters_come_from_a_stranger() {
    let (directory, out, data, _) = begun();
    let source = || Dataset::open(&out, &data).unwrap();
    let copy = directory.path().join("copy");
    let error = Stranger::of(source(), Some(DataFile::Parameters)).brings(&copy, &data).unwrap_err();
    assert_eq!((error.kind(), error.path()), (Kind::Corrupt, copy.join("parameters.bin.outline").as_path()));
    assert!(!copy.exists());
    let brought = Stranger::of(source(), None).brings(&copy, &data).unwrap();
    assert_eq!(brought.given().unwrap(), source().given().unwrap());
    assert_eq!(Dataset::open(&copy, &data).unwrap().data(), data);
    // Parameters have a bound of their own: all that a manifest may have.
    let start = |bytes| Data {
        start: Start::Given(CommittedFile { root: Digest::default(), bytes }),
        ..data.clone()
    };
    let place = directory.path().join("huge");
    Assembly::new(&place, start(PARAMETER_BYTES)).unwrap();
    let error = Assembly::new(&place, start(PARAMETER_BYTES + 4)).unwrap_err();
    assert!(error.kind() == Kind::Refused && error.path().ends_with(PARAMETERS), "{error}");
}

#[test]
fn half_a_token_number_is_refused() {
    let (_directory, out, data) = packed();
    let of = |tokens| {
        let file = tokeniser(tokens);
        fs::write(out.join(TOKENISER), &file).unwrap();
        let digest = Hasher::new(Domain::TOKENISER).part(&file).finish();
        let file = TokeniserFile { digest, bytes: file.len() as u32, tokens };
        Dataset::open(&out, &Data { tokeniser: Tokeniser::File(file), ..data.clone() })
    };
    assert_eq!((data.bytes % 2, data.held_out_bytes % 2), (0, 0));
    of(1 << 16).unwrap();
    let error = of(u32::MAX).unwrap_err();
    assert!(error.to_string().contains("held-out.bin: 14 bytes are not a whole number of tokens"), "{error}");
}

#[test]
fn a_tokeniser_says_how_many_numbers_it_knows() {
    let listed = br#"{"model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", 0.0]]}, "added_tokens": []}"#;
    let added =
        br#"{"added_tokens": [{"id": 7, "content": "</s>"}, {"id": 3}], "model": {"vocab": {"a": 5}}}"#;
    let null = br#"{"added_tokens": null, "model": {"vocab": {"a": 5}}}"#;
    let counts = [listed.as_slice(), added, null].map(token_numbers);
    assert_eq!(counts, [Some(2), Some(8), Some(6)]);
    let last = format!(r#"{{"model": {{"vocab": {{"a": {}}}}}}}"#, u32::MAX);
    let below = br#"{"model": {"vocab": {"a": -1}}}"#;
    let empty = br#"{"model": {"vocab": {}}}"#;
    for wrong in [last.as_bytes(), below, empty, b"{}", b"", b"[[[", br#"{"model": {"vocab": "ab"}}"#] {
        assert_eq!(token_numbers(wrong), None);
    }
}

/// The windows of the vectors, read by what trains and checks.
#[test]
fn windows_of_the_vectors() {
    let family: serde_json::Value =
        serde_json::from_str(include_str!("../../../../spec/vectors/dataset.json")).unwrap();
    let mut read = 0;
    for case in family["cases"].as_array().unwrap() {
        let (inputs, expected) = (&case["inputs"], &case["expect"]);
        let Some(tokens) = inputs["numbers"].as_u64() else { continue };
        let bytes = (0..inputs["bytes_mod_251"].as_u64().unwrap()).map(|place| (place % 251) as u8);
        let file = TokeniserFile { digest: Digest::default(), bytes: 0, tokens: tokens as u32 };
        let dataset = Dataset {
            train: Committed::new(bytes.collect()),
            held_out: Committed::new(Vec::new()),
            tokeniser: Tokeniser::File(file),
            tokeniser_file: Vec::new(),
            given: None,
            routing: None,
        };
        let window = expected["windows"].as_u64().unwrap() - 1;
        let sequence = inputs["sequence"].as_u64().unwrap() as u32;
        assert_eq!(serde_json::json!(dataset.window(window, sequence).unwrap()), expected["last_tokens"]);
        read += 1;
    }
    assert!(read > 1);
}
