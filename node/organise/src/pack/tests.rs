//! What people bring, and what becomes of it.

mod odd;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_core::manifest::DataFile;
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_store::dataset::{self, Dataset, RouterSize};

use super::{Format, PackOptions, PackedCorpus, pack};
use crate::tokenise::LoadedTokeniser;
use crate::tokenise::tests::WORDS;

/// A folder for files, and corpora beside them.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("files").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join("files").join(name)
    }

    fn pack(&self, options: PackOptions) -> Outcome<(PackedCorpus, String, String)> {
        let out = self.0.path().join("corpus");
        let _ = fs::remove_dir_all(&out);
        let packed = pack(&PackOptions { out: out.clone(), ..options }, &mut |_, _| ())?;
        assert_eq!(dataset::described(&out).unwrap(), packed.data);
        let corpus = Dataset::open(&out, &packed.data).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (train, held_out) = (
            text(&corpus.read(DataFile::Training, 0..u64::MAX).unwrap()),
            text(&corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap()),
        );
        Ok((packed, train, held_out))
    }

    /// The training text, then the held-out one.
    fn texts(&self, options: PackOptions) -> [String; 2] {
        let (_, train, held_out) = self.pack(options).unwrap();
        [train, held_out]
    }

    fn refused(&self, options: PackOptions) -> Failure {
        let refused = self.pack(options).map(|(_, train, held_out)| (train, held_out)).unwrap_err();
        assert!(!self.0.path().join("corpus").exists(), "{refused}");
        refused
    }
}

fn of(path: &Path) -> PackOptions {
    PackOptions { text: vec![path.to_owned()], ..PackOptions::default() }
}

fn column(path: &Path, name: &str) -> PackOptions {
    PackOptions { column: Some(name.into()), ..of(path) }
}

fn format(path: &Path, format: Format) -> PackOptions {
    PackOptions { format: Some(format), ..of(path) }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

const ROWS: &str = concat!(
    "{\"text\": \"one\\nline\", \"doc\": {\"text\": \"in\"}, \"id\": 1}\n",
    "\n",
    "  {\"id\": 2, \"text\": \"caf\\u00e9 \\ud83d\\ude00 \\\"q\\\"\", \"doc\": {\"text\": \"within\"}}\r\n",
    "{\"text\": null, \"doc\": {}}\n{\"id\": 4}\n{\"text\": \"\"}\n",
    "{\"text\": \"last\", \"doc\": {\"text\": \"more\"}}",
);

#[test]
fn a_field_of_json_lines_is_packed_and_never_their_syntax() {
    let desk = Desk::new();
    for name in ["rows.jsonl", "rows.ndjson", "rows.json", "ROWS.JSONL"] {
        let rows = desk.put(name, ROWS);
        assert_eq!(desk.texts(of(&rows)), ["one\nline\0caf\u{e9} \u{1f600} \"q\"\0", "last\0"], "{name}");
    }
    let rows = desk.put("marked.jsonl", [b"\xEF\xBB\xBF", ROWS.as_bytes()].concat());
    assert_eq!(desk.texts(column(&rows, "doc.text")), ["in\0within\0", "more\0"]);
    let (packed, ..) = desk.pack(of(&rows)).unwrap();
    assert!(
        packed.remarks.contains(&"3 rows left out, without text in \"text\"".to_owned()),
        "{:?}",
        packed.remarks
    );
    // Of a pipe or of any other name, nobody knows what is meant.
    let other = desk.put("rows.txt", ROWS);
    let refused = desk.refused(of(&other));
    assert!(refused.message.contains("rows.txt: looks like JSON lines; say --format jsonl"), "{refused}");
    assert_eq!(refused.exit, Exit::Usage);
    assert_eq!(desk.texts(format(&other, Format::Jsonl)), desk.texts(of(&rows)));
    assert!(desk.texts(format(&rows, Format::Text))[0].starts_with("{\"text\""));
}

#[test]
fn what_is_wrong_with_a_line_is_named() {
    let desk = Desk::new();
    let refused = |text: &str| desk.refused(of(&desk.put("rows.jsonl", text))).message;
    let missing = refused("{\"story\": \"a\", \"doc\": {\"body\": \"b\"}, \"n\": 1}\n");
    assert!(
        missing.contains("rows.jsonl, line 1: has no field \"text\"; name one of text with --column: "),
        "{missing}"
    );
    assert!(
        missing.contains("doc.body") && missing.contains("story") && !missing.contains(", n"),
        "{missing}"
    );
    for (row, what) in [
        ("{\"text\": 3}", "line 3: has a number in its field \"text\""),
        ("{\"text\": [\"a\"]}", "line 3: has a list in its field \"text\""),
        ("[1]", "line 3: is no JSON object"),
        ("{\"text\": \"cut", "line 3: is no JSON ("),
        ("{\"text\": \"\\ud800\"}", "line 3: is no JSON ("),
        ("{\"text\": \"a\\u0000b\"}", "line 3: has a zero byte (after 1 byte)"),
    ] {
        let said = refused(&format!("{{\"text\": \"good\"}}\n\n{row}\n"));
        assert!(said.contains(what), "{row}: {said}");
    }
    let pretty = desk.put("list.json", "[\n  {\n    \"text\": \"a\"\n  }\n]\n");
    let refused = desk.refused(of(&pretty)).message;
    assert!(refused.contains("looks like JSON; make JSON lines of it (jq -c"), "{refused}");
    assert!(desk.texts(format(&pretty, Format::Text))[0].starts_with("[\n"));
}

#[test]
fn a_column_of_a_table_is_packed_and_never_its_syntax() {
    let desk = Desk::new();
    let table = "id,text,lang\r\n1,\"a, \"\"b\"\"\r\nc\",en\r\n2,,en\r\n3,plain,de\r\n4,\"last\",de\r\n";
    let expected = ["a, \"b\"\nc\0plain\0", "last\0"];
    let csv = desk.put("t.csv", table);
    assert_eq!(desk.texts(of(&csv)), expected);
    let marked =
        desk.put("marked.csv", [b"\xEF\xBB\xBF", table.replace("id,text", "text,id").as_bytes()].concat());
    assert_eq!(desk.texts(column(&marked, "lang")), ["en\0en\0de\0", "de\0"]);
    assert_eq!(
        desk.texts(column(&marked, "text")),
        ["1\x002\x003\0", "4\0"],
        "the first column has no mark in its name"
    );
    let semicolons = desk.put("t2.csv", "id;text\n1;a,b\n2;c\n");
    assert_eq!(desk.texts(of(&semicolons)), ["a,b\0", "c\0"]);
    let tabs = desk.put("t.tsv", "id\ttext\n1\ta, b\n2\t\"c\td\"");
    assert_eq!(desk.texts(of(&tabs)), ["a, b\0", "c\td\0"]);
    for (name, table, kind) in [("table", "id,text\n1,a\n", "csv"), ("t.txt", "text\tid\na\t1\n", "tsv")] {
        let refused = desk.refused(of(&desk.put(name, table))).message;
        assert!(refused.contains(&format!("looks like a table; say --format {kind}")), "{refused}");
    }
    assert_eq!(desk.texts(format(&desk.put("table", "id,text\n1,a\n2,b\n"), Format::Csv)), ["a\0", "b\0"]);
    assert_eq!(desk.texts(of(&desk.put("prose.txt", "Of this text, text\nremains.\n")))[0].len(), 28);
}

#[test]
fn what_is_wrong_with_a_table_is_named() {
    let desk = Desk::new();
    let refused = |table: &str| desk.refused(of(&desk.put("t.csv", table))).message;
    let missing = refused("1,some words,en\n2,more,en\n");
    assert!(
        missing.contains(
            "t.csv: has no column \"text\" in its first line; name one with --column (1, some words, en)"
        ),
        "{missing}"
    );
    assert!(missing.contains("put a line with the names of the columns before it"), "{missing}");
    let ragged = refused("id,text\n1,a\n2,b,c\n");
    assert!(ragged.contains("t.csv, line 3: has 3 fields, and the first line has 2"), "{ragged}");
    let open = refused("id,text\n1,\"never closed\n2,b\n3,c\n");
    assert!(open.contains("has a quote that is never closed"), "{open}");
    assert!(refused("id,text,text\n1,a,b\n").contains("has two columns \"text\""));
    assert!(refused("id,text\n").contains("t.csv: nothing to train on"));
    let latin = desk.refused(of(&desk.put("t.csv", b"id,text\n1,caf\xE9\n"))).message;
    assert!(latin.contains("t.csv, line 2: is not UTF-8 text; leave it out or convert it (iconv"), "{latin}");
}

#[test]
fn each_kind_is_read_compressed_too() {
    let desk = Desk::new();
    let text = "Bread and butter.\n".repeat(400);
    let kinds = [
        ("book", text.as_str()),
        ("rows.jsonl", ROWS),
        ("t.csv", "id,text\n1,a\n2,b\n"),
        ("t.tsv", "text\nbread\n"),
    ];
    for (name, text) in kinds {
        let expected = desk.texts(of(&desk.put(name, text)));
        for (end, whole) in [(".gz", gzip(text.as_bytes())), (".zst", zstandard(text.as_bytes()))] {
            let path = desk.put(&format!("{name}{end}"), &whole);
            assert_eq!(desk.texts(of(&path)), expected, "{name}{end}");
            let path = desk.put(&format!("cut-{name}{end}"), &whole[..whole.len() - 6]);
            let refused = desk.refused(of(&path)).message;
            assert!(refused.contains(": cannot be read (") || refused.contains("is no JSON"), "{refused}");
        }
    }
    // Several members, as `cat a.gz b.gz` makes them, and a name that does not say it.
    let twice = desk.put("twice", [gzip(b"one "), gzip(b"two")].concat());
    assert_eq!(desk.texts(of(&twice)), ["one tw\0", "o\0"]);
}

#[test]
fn marks_and_line_ends_of_windows_are_no_text() {
    let desk = Desk::new();
    let mark = "\u{feff}";
    desk.put("a.txt", format!("{mark}one\r\ntwo\r\n\r\n{mark}three\rfour\n"));
    desk.put("b.txt", format!("{mark}last\r\n"));
    let (packed, train, held_out) = desk.pack(of(&desk.at(""))).unwrap();
    assert_eq!([train, held_out], [format!("one\ntwo\n\n{mark}three\rfour\n\0"), "last\n\0".into()]);
    assert!(
        packed.remarks.iter().any(|remark| remark.starts_with("2 pieces of text had line ends of Windows"))
    );
    // A line end where one piece of a long text ends and the next begins.
    let long = "x".repeat((1 << 20) - 1) + "\r\n" + &"y".repeat((1 << 20) - 3) + "\u{20ac}z";
    let path = desk.put("long.txt", &long);
    let [train, held_out] = desk.texts(of(&path));
    assert!(train.replace('\0', "") + &held_out.replace('\0', "") == long.replace("\r\n", "\n"));
    for (name, bytes, what) in [
        ("le.txt", &b"\xFF\xFEa\0b\0"[..], "is UTF-16; convert it: iconv -f UTF-16"),
        ("be.csv", b"\xFE\xFF\0a\0b", "is UTF-16"),
        ("32.jsonl", b"\xFF\xFE\0\0a\0\0\0", "is UTF-32"),
        ("unmarked.txt", b"a\0b\0", "has a zero byte (after 1 byte), which no text has"),
        ("latin.txt", b"caf\xE9 au lait", "is not UTF-8 text (byte 3)"),
        ("cut.txt", b"caf\xC3", "is not UTF-8 text (byte 3)"),
        ("a.pdf", b"%PDF-1.7\n", "is a PDF"),
        (
            "rows",
            b"PAR1\x15\x04",
            "is a Parquet file; name the file itself, and let its name end with .parquet",
        ),
        ("a.docx", b"PK\x03\x04", "is a ZIP archive"),
        ("a.xz", b"\xFD7zXZ\0\0", "is compressed by xz; unpack it"),
    ] {
        let refused = desk.refused(of(&desk.put(name, bytes)));
        assert!(refused.message.contains(&format!("{name}: {what}")), "{refused}");
    }
}

#[test]
fn hidden_files_are_left_out_and_all_that_cannot_be_packed_is_named_at_once() {
    let desk = Desk::new();
    desk.put("repo/.git/objects/pack/a.pack", [0xFF, 0]);
    desk.put("repo/.DS_Store", [0, 0, 0, 1]);
    desk.put("repo/src/a.rs", "fn a() {}\n");
    let last = desk.put("repo/src/b.rs", "fn b() {}\n");
    let repo = desk.at("repo");
    let (packed, train, held_out) = desk.pack(of(&repo)).unwrap();
    assert_eq!([train, held_out], ["fn a() {}\n\0", "fn b() {}\n\0"]);
    assert!(packed.remarks[0].starts_with("2 hidden names left out"), "{:?}", packed.remarks);
    // Kinds are told apart file by file.
    desk.put("repo/rows.jsonl", "{\"text\": \"row\"}\n");
    desk.put("repo/t.csv.gz", gzip(b"n,text\n1,cell\n"));
    assert_eq!(desk.texts(of(&repo))[0], "row\0fn a() {}\n\0fn b() {}\n\0");
    desk.put("repo/logo.png", b"\x89PNG\r\n\x1a\n\0");
    desk.put("repo/package.json", "{\n  \"name\": \"a\"\n}\n");
    desk.put("repo/z.bin", [0xFF, 0]);
    let all = desk.refused(of(&repo)).message;
    assert!(all.starts_with("3 files cannot be packed:\n  "), "{all}");
    for name in ["logo.png: is not UTF-8", "package.json: looks like JSON", "z.bin: is not UTF-8"] {
        assert!(all.contains(name), "{all}");
    }
    (0..30).for_each(|number| drop(desk.put(&format!("many/{number:02}.bin"), [0xFF])));
    let many = desk.refused(of(&desk.at("many"))).message;
    assert!(many.starts_with("30 files") && many.ends_with("\n  and 10 more"), "{many}");
    // Named, a hidden file is packed.
    let hidden = desk.put("repo/.env", "SECRET=no\n");
    assert_eq!(
        desk.texts(PackOptions { text: vec![hidden, last], ..PackOptions::default() })[0],
        "SECRET=no\n\0"
    );
    fs::create_dir_all(desk.at("empty/.git")).unwrap();
    let empty = desk.refused(of(&desk.at("empty"))).message;
    assert!(empty.contains("empty: has no files to pack; hidden ones"), "{empty}");
}

#[test]
fn empty_files_alone_are_no_corpus() {
    let desk = Desk::new();
    desk.put("dir/a.txt", "");
    desk.put("dir/b.txt", "");
    let refused = desk.refused(of(&desk.at("dir")));
    assert!(refused.message.contains("nothing to train on: all of it is empty"), "{refused}");
    fs::write(desk.at("rules.json"), WORDS).unwrap();
    let (tokeniser, end) = (Some(desk.at("rules.json")), Some("</s>".into()));
    let refused = desk.refused(PackOptions { tokeniser, end, ..of(&desk.at("dir")) });
    assert!(refused.message.contains("nothing to train on: all of it is empty"), "{refused}");
    // One that is not empty is held out in part, however many are empty beside it.
    desk.put("dir/a.txt", "All there is.");
    assert_eq!(desk.texts(of(&desk.at("dir"))), ["All there is\0", ".\0"]);
    let (packed, ..) = desk.pack(of(&desk.at("dir"))).unwrap();
    assert!(packed.remarks[0].starts_with("2 tokens held out: losses measured on so few say little"));
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_once_and_its_end_is_held_out() {
    let desk = Desk::new();
    let pipe = desk.at("pipe");
    fs::create_dir_all(desk.at("")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let text = "Day runs and runs over day river quiet past.\n".repeat(900);
    let write = |bytes: Vec<u8>| {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::write(pipe, bytes).unwrap())
    };
    let expected = desk.texts(of(&desk.put("plain.txt", &text)));
    assert_eq!(expected[1].len(), text.len() / 20 + 1);
    for bytes in [text.clone().into_bytes(), gzip(text.as_bytes())] {
        let writer = write(bytes);
        assert_eq!(desk.texts(of(&pipe)), expected);
        writer.join().unwrap();
    }
    let writer = write(ROWS.into());
    assert_eq!(desk.texts(format(&pipe, Format::Jsonl))[1], "last\0");
    writer.join().unwrap();
    let writer = write(Vec::new());
    let refused = desk.refused(of(&pipe));
    writer.join().unwrap();
    assert!(refused.message.contains("pipe: gave nothing; did the command"), "{refused}");
    // In a folder, nobody waits for one.
    desk.put("folder/a.txt", "one");
    desk.put("folder/b.txt", "two");
    fs::rename(&pipe, desk.at("folder/pipe")).unwrap();
    assert_eq!(desk.texts(of(&desk.at("folder"))), ["one\0", "two\0"]);
}

#[test]
fn sources_have_their_shares_from_the_beginning_to_the_end() {
    let desk = Desk::new();
    let rows = |letter: &str, count| format!("{{\"text\": \"{}\"}}\n", letter.repeat(9)).repeat(count);
    let (one, two) = (desk.put("one.jsonl", rows("a", 300)), desk.put("two.jsonl", rows("b", 40)));
    let text = vec![one, two];
    let options = PackOptions { text: text.clone(), weights: vec![3, 1], ..PackOptions::default() };
    let (packed, train, held_out) = desk.pack(options).unwrap();
    let texts: Vec<&str> = train.split_terminator('\0').chain(held_out.split_terminator('\0')).collect();
    let of_two = |texts: &[&str]| texts.iter().filter(|text| text.starts_with('b')).count();
    assert_eq!((texts.len(), of_two(&texts)), (161, 40), "the smaller source ends it");
    assert!(texts.chunks_exact(4).all(|four| of_two(four) == 1));
    assert!(packed.remarks[0].contains("one.jsonl 1089 bytes (75.2 %)"), "{:?}", packed.remarks);
    assert!(packed.remarks[0].contains("two.jsonl has no more, what is left of others was left out"));
    let all = PackOptions { text: text.clone(), ..PackOptions::default() };
    assert_eq!(desk.texts(all)[0].len(), 323 * 10, "without weights, all of each");
    let refused = desk.refused(PackOptions { text, weights: vec![1], ..PackOptions::default() });
    assert!(refused.message.contains("--weights has 1 number for 2 paths of --text"), "{refused}");
}

#[test]
fn no_more_is_read_than_somebody_wants() {
    let desk = Desk::new();
    let long = desk.put("long.txt", "a".repeat(3 << 20));
    let (packed, train, held_out) = desk.pack(PackOptions { most: Some(1 << 20), ..of(&long) }).unwrap();
    assert_eq!(train.len() + held_out.len(), (1 << 20) + 2);
    assert!(packed.remarks[0].starts_with("no more was read"), "{:?}", packed.remarks);
    // Nobody waits to the end of what no corpus can hold.
    let huge = desk.put("huge.txt", "");
    fs::File::options().write(true).open(&huge).unwrap().set_len((1 << 40) + 1).unwrap();
    let refused = desk.refused(of(&huge));
    assert!(refused.message.contains("pack only the first of it: --most 512"), "{refused}");
}

#[test]
fn texts_end_with_the_models_token_and_control_words_are_text() {
    let desk = Desk::new();
    let rules = desk.put("model/tokenizer.json", WORDS);
    desk.put("docs/a.txt", "bread and </s> butter");
    desk.put("docs/b.txt", "butter.");
    let options = PackOptions { tokeniser: Some(rules), ..of(&desk.at("docs")) };
    let refused = desk.refused(options.clone());
    assert!(refused.message.contains("says which token ends a text; say --end WORD"), "{refused}");
    desk.put("model/tokenizer_config.json", r#"{"eos_token": "</s>"}"#);
    let (packed, ..) = desk.pack(options.clone()).unwrap();
    assert_eq!(packed.ending.as_ref().map(|end| end.number), Some(300));
    let tokens = |options: PackOptions| {
        let (packed, ..) = desk.pack(options).unwrap();
        let corpus = Dataset::open(&desk.0.path().join("corpus"), &packed.data).unwrap();
        let read = |bytes: &[u8]| {
            bytes.chunks(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect::<Vec<_>>()
        };
        [
            read(&corpus.read(DataFile::Training, 0..u64::MAX).unwrap()),
            read(&corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap()),
        ]
    };
    assert_eq!(tokens(options.clone()), [vec![1, 2, 0, 0, 0, 258, 300], vec![258, 4, 300]]);
    let asked = PackOptions { control_words: true, ..options.clone() };
    assert_eq!(tokens(asked)[0], [1, 2, 300, 258, 300]);
    let none = PackOptions { end: Some(String::new()), ..options.clone() };
    assert_eq!(tokens(none), [vec![1, 2, 0, 0, 0, 258], vec![258, 4]]);
    // A text may have a word that is the end whatever is done.
    let refused = desk.refused(PackOptions { end: Some("and".into()), ..options });
    assert!(
        refused.message.contains("a.txt: has the word \"and\", which this tokeniser always takes"),
        "{refused}"
    );
}

#[test]
fn a_corpus_of_many_files_is_described_in_its_first_lines() {
    let desk = Desk::new();
    let name = "n".repeat(120);
    (0..120).for_each(|number| drop(desk.put(&format!("many/{name}-{number}"), "a")));
    let (packed, ..) = desk.pack(of(&desk.at("many"))).unwrap();
    assert_eq!(packed.data.bytes, 114 * 2);
    let about = fs::read_to_string(desk.0.path().join("corpus/corpus.txt")).unwrap();
    assert!(about.len() > 4096 && about.contains("\ntraining texts (bytes, name)\n         1 "), "{about}");
}

fn options(text: &[PathBuf], held_out: &[PathBuf], out: PathBuf) -> PackOptions {
    let (text, held_out) = (text.to_vec(), held_out.to_vec());
    PackOptions { text, held_out, out, ..PackOptions::default() }
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
    assert_eq!(corpus.read(DataFile::Training, 0..u64::MAX).unwrap(), b"first\0second\0");
    assert_eq!(corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap(), b"third\0");
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
    assert_eq!(
        corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap(),
        ["ä".repeat(5).as_bytes(), b"\0"].concat()
    );
    assert_eq!(corpus.read(DataFile::Training, 0..u64::MAX).unwrap().len(), 191);
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
        let options = PackOptions { tokeniser: Some(rules.clone()), end: Some("</s>".into()), ..text };
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
    assert_eq!(corpus.window(1, 4).unwrap(), [1, 2, 258, 4, 1]);
    assert_eq!(corpus.window(39, 4).unwrap(), [1, 2, 258, 4, 300]);
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
        let end = Some("</s>".into());
        let options = PackOptions { tokeniser, end, router, ..plain };
        let packed = pack(&options, &mut |_, _| ()).unwrap();
        let named = packed.data.router.clone().unwrap();
        assert_eq!((named.rows, named.tokens, packed.shares.len()), (2, 16, 2));
        assert!((packed.shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{:?}", packed.shares);
        assert_eq!(dataset::described(&options.out).unwrap(), packed.data);
        // A line that occurs thousands of times has few kinds of places, each of one row.
        assert!(packed.shares.iter().all(|share| (0.3..0.7).contains(share)), "{name} {:?}", packed.shares);
    }
    let one = std::slice::from_ref(&file);
    let router = Some(RouterSize { rows: 64, tokens: 4096 });
    let options = PackOptions { router, ..options(one, one, directory.path().join("short")) };
    let failure = pack(&options, &mut |_, _| ()).unwrap_err();
    assert!(failure.message.contains("short: "), "{failure}");
    assert!(failure.message.contains("too few for 64 rows that read 4096"), "{failure}");
}

#[test]
fn empty_files_are_no_texts_and_never_all_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let [empty, first, last] = ["a", "b", "c"].map(|name| directory.path().join(name));
    let texts = [(&empty, ""), (&first, "first"), (&last, "last")];
    texts.iter().for_each(|(path, text)| fs::write(path, text).unwrap());
    let packed = |text: &[&PathBuf], held_out: &[&PathBuf], out: &str| {
        let [text, held_out] =
            [text, held_out].map(|paths| paths.iter().map(|path| (*path).clone()).collect());
        let out = directory.path().join(out);
        let options = PackOptions { text, held_out, out: out.clone(), ..PackOptions::default() };
        let packed = pack(&options, &mut |_, _| ())?;
        Ok::<_, Failure>(dataset::Dataset::open(&out, &packed.data).unwrap())
    };
    let corpus = packed(&[&empty, &first, &last], &[], "some").unwrap();
    assert_eq!(
        [
            corpus.read(DataFile::Training, 0..u64::MAX).unwrap(),
            corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap()
        ],
        [&b"first\0"[..], &b"last\0"[..]]
    );
    for (text, held_out) in [(&[&empty][..], &[&last][..]), (&[&first], &[&empty]), (&[&empty], &[])] {
        let failure = packed(text, held_out, "none").unwrap_err();
        assert!(failure.message.contains("all of it is empty; name more text"), "{failure}");
        assert!(!directory.path().join("none").exists());
    }
}

#[test]
fn bad_text_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("binary");
    fs::write(&file, [0xFF, 0xFE]).unwrap();
    let out = directory.path().join("corpus");
    let failure =
        pack(&options(std::slice::from_ref(&file), std::slice::from_ref(&file), out.clone()), &mut |_, _| ())
            .unwrap_err();
    assert!(failure.message.contains("binary") && failure.message.contains("UTF-8"), "{failure}");
    assert_eq!(failure.exit, Exit::Environment);
    assert!(!out.exists());
    let failure = pack(&options(&[directory.path().join("none")], &[], out), &mut |_, _| ()).unwrap_err();
    assert!(failure.message.contains("none: cannot be read"), "{failure}");
}

#[test]
fn a_tokeniser_is_made_from_the_text_and_kept_with_it() {
    let desk = Desk::new();
    let text = "Bread and butter, and bread and jam; day runs and runs over day.\n".repeat(2000);
    let path = desk.put("book.txt", &text);
    let corpus = desk.0.path().join("corpus");
    let packed = || desk.pack(PackOptions { train_tokeniser: Some(300), ..of(&path) }).unwrap().0;
    let first = packed();
    let words = LoadedTokeniser::open(&corpus.join("tokenizer.json")).unwrap();
    assert_eq!(first.data.kinds(), words.tokens());
    assert!((280..=300).contains(&words.tokens()), "{}", words.tokens());
    assert_eq!(first.ending.as_ref().map(|end| (end.word.as_str(), end.number)), Some(("<|endoftext|>", 0)));
    // Tokens of several letters, and the text comes back.
    let tokens: Vec<u32> = Dataset::open(&corpus, &first.data).unwrap().window(0, 99).unwrap();
    assert!(
        text.starts_with(&words.decode(&tokens)) && words.decode(&tokens).len() > 200,
        "{}",
        words.decode(&tokens)
    );
    assert!(first.data.bytes < text.len() as u64, "two bytes a token, and several letters");
    assert_eq!(packed().data, first.data, "the same text gives the same numbers");
    // A text that gives fewer than are wanted does not give them in silence.
    let short =
        |remark: &String| remark.contains("kinds of tokens and not 5000") && remark.contains("more text");
    assert!(!first.remarks.iter().any(short));
    let (wanting, ..) = desk.pack(PackOptions { train_tokeniser: Some(5000), ..of(&path) }).unwrap();
    assert!(wanting.data.kinds() < 5000 && wanting.remarks.iter().any(short), "{:?}", wanting.remarks);
    // More text, in the same numbers: the corpus says how it ends.
    fs::rename(&corpus, desk.at("kept")).unwrap();
    let (other, ..) = desk
        .pack(PackOptions {
            tokeniser: Some(desk.at("kept/tokenizer.json")),
            ..of(&desk.put("more.txt", "Jam.".repeat(99)))
        })
        .unwrap();
    assert_eq!((other.data.tokeniser, other.ending.map(|end| end.number)), (first.data.tokeniser, Some(0)));
}
