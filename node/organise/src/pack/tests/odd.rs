//! Files as other programs leave them: text is lost or mixed up nowhere in silence.

use super::*;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

#[test]
fn what_is_no_text_of_its_own_is_named() {
    let desk = Desk::new();
    for name in ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.arrow", "a.txt.gz"] {
        let refused = desk.refused(of(&desk.put(name, POINTER))).message;
        assert!(refused.contains(&format!("{name}: is a pointer of Git LFS")), "{refused}");
    }
    let mut tar = vec![0; 1024];
    tar[..5].copy_from_slice(b"a.txt");
    tar[257..262].copy_from_slice(b"ustar");
    for (name, bytes, what) in [
        ("a.tar.gz", gzip(&tar), "is a tar archive; unpack it"),
        ("a.7z", b"7z\xBC\xAF\x27\x1C\0\x04".to_vec(), "is a 7-Zip archive; unpack it"),
        ("a.arrow", b"ARROW1\0\0".to_vec(), "is an Arrow file (Feather)"),
        ("a.feather", b"ARROW1\0\0".to_vec(), "is an Arrow file (Feather)"),
        ("a.rtf", b"{\\rtf1\\ansi text\\par}".to_vec(), "is rich text (RTF)"),
        ("a.gz.gz", gzip(&gzip(b"text")), "is compressed twice; unpack it once"),
        ("rows.parquet.zst", zstandard(b"PAR1"), "is compressed as a whole, and is read at several places"),
        ("b.txt.gz", [gzip(b"text"), b"more".to_vec()].concat(), "it is damaged, or no whole file"),
    ] {
        let refused = desk.refused(of(&desk.put(name, bytes))).message;
        assert!(refused.contains(name) && refused.contains(what), "{refused}");
    }
}

#[test]
fn what_is_text_by_its_bytes_is_packed_where_somebody_says_so() {
    let desk = Desk::new();
    for text in [POINTER, "{\\rtf is how it begins", "PAR1", "%PDF- is a mark", "BZh"] {
        let [train, held_out] = desk.texts(format(&desk.put("a.txt", text), Format::Text));
        assert_eq!((train + &held_out).replace('\0', ""), text);
    }
    let zip = desk.refused(format(&desk.put("a.txt", b"PK\x03\x04\0\0"), Format::Text)).message;
    assert!(zip.contains("is a ZIP archive"), "{zip}");
}

#[test]
fn a_table_is_no_text_whatever_its_name() {
    let desk = Desk::new();
    for (table, format) in [
        ("id,text\n1,a\n", "csv"),
        ("id|text\n1|a\n", "csv"),
        ("sep=;\nid;text\n1;a\n", "csv"),
        ("\"id\" ; \"text\"\r\n1;a\r\n", "csv"),
        ("id,text\r1,a\r", "csv"),
        ("id\ttext\n1\ta\n", "tsv"),
    ] {
        let refused = desk.refused(of(&desk.put("a.txt", table))).message;
        assert!(refused.contains(&format!("looks like a table; say --format {format}")), "{refused}");
    }
}

#[test]
fn lines_that_end_as_on_old_macs_are_lines() {
    let desk = Desk::new();
    let (packed, train, _) = desk.pack(of(&desk.put("a.txt", "one\rtwo\r\rthree\r".repeat(20)))).unwrap();
    assert!(train.starts_with("one\ntwo\n\nthree\none\n") && !train.contains('\r'), "{train}");
    assert!(packed.remarks[0].contains("line ends of Windows or old Macs"), "{:?}", packed.remarks);
    // The first line end of Windows where the beginning that is looked at ends.
    let long = "x".repeat((64 << 10) - 1) + "\r\ntwo\r\nthree";
    let [train, held_out] = desk.texts(of(&desk.put("long.txt", &long)));
    assert!(train.replace('\0', "") + &held_out.replace('\0', "") == long.replace("\r\n", "\n"));
    let rows = ROWS.replace("\r\n", "\n").replace('\n', "\r");
    assert_eq!(
        desk.texts(of(&desk.put("mac.jsonl", rows))),
        desk.texts(of(&desk.put("rows.jsonl", ROWS))),
        "a text of JSON has no CR as it is"
    );
    assert_eq!(desk.texts(of(&desk.put("t.csv", "id,text\r1,\"a\rc\"\r2,b\r"))), ["a\nc\0", "b\0"]);
}

#[test]
fn json_lines_are_read_as_python_and_concatenation_leave_them() {
    let desk = Desk::new();
    let rows = "{\"score\": NaN, \"text\": \"NaN, \\\"Infinity\\\"\"}\n\u{feff}{\"text\": \"b\", \"s\": [-Infinity, 1]}\n";
    let rows = desk.put("rows.jsonl", format!("{rows}{{\"text\": \"c\"}}\n"));
    assert_eq!(desk.texts(of(&rows)), ["NaN, \"Infinity\"\0b\0", "c\0"]);
    let missing = desk.put("missing.jsonl", "{\"text\": \"a\"}\n{\"text\": NaN}\n{\"text\": \"b\"}\n");
    let (packed, train, held_out) = desk.pack(of(&missing)).unwrap();
    assert_eq!([train, held_out], ["a\0", "b\0"], "what pandas writes where there is no text");
    assert!(packed.remarks.contains(&"1 row left out, without text in \"text\"".to_owned()));
    let list = desk.refused(of(&desk.put("list.jsonl", "[{\"text\": \"a\"}]\n"))).message;
    assert!(list.contains("list.jsonl, line 1: is no JSON object") && list.contains("jq -c"), "{list}");
    let latin = desk.refused(of(&desk.put("latin.jsonl", b"{\"text\": \"caf\xE9\"}\n"))).message;
    assert!(
        latin.contains("latin.jsonl, line 1: is not UTF-8 text; leave it out or convert it (iconv"),
        "{latin}"
    );
    let frames = [zstandard(b"{\"text\": \"a\"}\n"), zstandard(b"{\"text\": \"b\"}\n")].concat();
    assert_eq!(desk.texts(of(&desk.put("frames.jsonl.zst", frames))), ["a\0", "b\0"]);
    // Programs that compress in parallel begin with a frame that is skipped.
    let skipped =
        [&b"\x50\x2A\x4D\x18\x04\0\0\0size"[..], &zstandard(b"{\"text\": \"a\"}\n{\"text\": \"b\"}")]
            .concat();
    assert_eq!(desk.texts(of(&desk.put("skipped.jsonl.zst", skipped))), ["a\0", "b\0"]);
}

#[test]
fn a_quote_that_nobody_closed_joins_no_rows_in_silence() {
    let desk = Desk::new();
    let refused = |name: &str, table: &str| desk.refused(of(&desk.put(name, table))).message;
    let joined = refused("t.tsv", "id\ttext\n1\t\"open\n2\tb\n3\tsay \"c\"\n4\t\"d\"\n");
    assert!(joined.contains("t.tsv, line 4: has text behind the quote that ends a field"), "{joined}");
    assert!(joined.contains("--format tsv-plain"), "{joined}");
    let open = refused("open.csv", "id,text\n1,a\n2,\"open\n3,b\n");
    assert!(open.contains("open.csv, line 3: has a quote that is never closed"), "{open}");
    // Closed by the next one that stands at the end of a field.
    let remarks = |name: &str, table: &str| desk.pack(of(&desk.put(name, table))).unwrap().0.remarks;
    let joined = remarks("j.csv", "id,text\n1,\"open\n2,b\n3,c\"\n4,d\n");
    assert!(joined[0].starts_with("1 field in quotes looks like rows of the table"), "{joined:?}");
    let joined = remarks("j.tsv", "id\ttext\tby\n1\t\"open\tx\n2\tb\"\ty\n4\td\te\n");
    assert!(joined[0].starts_with("1 field in quotes"), "{joined:?}");
    let lines = remarks("l.csv", "id,text\n1,\"Dear all,\nyes, no, maybe\nEve\"\n2,d\n");
    assert!(!lines[0].contains("in quotes"), "{lines:?}");
    let dropped = refused("u.tsv", "id\ttext\n1\t\"Hello\" he said\n");
    assert!(dropped.contains("u.tsv, line 2: has text behind"), "{dropped}");
    let escaped = refused("t.csv", "sep=,\r\nid,text\r\n1,\"he said \\\"hi\\\" twice\"\r\n");
    assert!(escaped.contains("t.csv, line 3: has text behind"), "{escaped}");
    let table = desk.put("plain.tsv", "id\ttext\n1\t\"Hello\" he said\n2\t\"open\n3\t5\" disk\n");
    assert_eq!(desk.texts(format(&table, Format::TsvPlain)), ["\"Hello\" he said\0\"open\0", "5\" disk\0"]);
    let one = refused("one.csv", "id,text\n1\n");
    assert!(one.contains("one.csv, line 2: has 1 field, and the first line has 2"), "{one}");
}

#[test]
fn tables_of_spreadsheets_are_read() {
    let desk = Desk::new();
    for (name, table) in [
        ("sep.csv", "sep=;\r\nid;text\r\n1;a, b\r\n2;c\r\n"),
        ("bar.csv", "id|text\n1|\"a, b\"\n2|c\n"),
        ("blank.csv", "id , text\n1,\"a, b\"\n2,c\n"),
    ] {
        assert_eq!(desk.texts(of(&desk.put(name, table))), ["a, b\0", "c\0"], "{name}");
    }
}

#[test]
fn what_is_left_out_and_what_is_there_twice_is_said() {
    let desk = Desk::new();
    let (first, last) = (desk.put("dir/a.txt", "first\n"), desk.put("dir/b.txt", "last\n"));
    let twice = PackOptions { held_out: vec![last], ..of(&desk.at("dir")) };
    let remarks = desk.pack(twice).unwrap().0.remarks;
    assert!(
        remarks.iter().any(|remark| remark.contains("b.txt is trained on and held out as well")),
        "{remarks:?}"
    );
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&first, desk.at("dir/c.txt")).unwrap();
        let (packed, train, held_out) = desk.pack(of(&desk.at("dir"))).unwrap();
        assert_eq!([train, held_out], ["first\n\0", "last\n\0"]);
        assert!(packed.remarks[0].starts_with("1 link left out"), "{:?}", packed.remarks);
    }
    let page = desk.put("page.html", "\n<!DOCTYPE html><html><p>A page.</p></html>\n");
    let remarks = desk.pack(of(&page)).unwrap().0.remarks;
    assert!(remarks[0].starts_with("1 file of HTML or XML packed with all tags"), "{remarks:?}");
    assert!(!desk.pack(format(&page, Format::Text)).unwrap().0.remarks[0].contains("HTML"));
    let empty = PackOptions { held_out: vec![desk.put("empty.txt", "")], ..of(&first) };
    let refused = desk.refused(empty).message;
    assert!(
        refused.contains("empty.txt: nothing to hold out: all of it is empty; name more text"),
        "{refused}"
    );
    let rows = desk.put("rows.jsonl", "{\"text\": null}\n{\"text\": \"\"}\n");
    let refused = desk.refused(of(&rows)).message;
    assert!(
        refused.contains("nothing to train on: all of it is empty; 2 rows without text in \"text\""),
        "{refused}"
    );
    let trained = desk.put("trained.jsonl", "{\"text\": \"a\"}\n{\"text\": null}\n");
    let kept = desk.put("kept.jsonl", "{\"text\": null}\n");
    let refused = desk.refused(PackOptions { held_out: vec![kept], ..of(&trained) }).message;
    assert!(refused.contains("all of it is empty; 1 row without text"), "{refused}");
}

#[test]
fn text_that_a_tokeniser_does_not_know_is_not_lost_without_a_word() {
    let desk = Desk::new();
    let word_level = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"bread": 0, "butter": 1, "</s>": 2, "[UNK]": 3}, "unk_token": "[UNK]"}
    });
    let folder = desk.put("model/tokenizer.json", format!("\u{feff}{word_level}"));
    // Named by its folder, and saved by an editor of Windows.
    let tokeniser = folder.parent().map(Path::to_owned);
    let packed = |text: &str| {
        let end = Some("</s>".into());
        let options = PackOptions { tokeniser: tokeniser.clone(), end, ..of(&desk.put("a.txt", text)) };
        desk.pack(options).unwrap().0
    };
    let warned = |packed: &PackedCorpus| {
        packed.remarks.iter().any(|remark| remark.contains("25.0 % of the tokens are [UNK]"))
    };
    assert!(warned(&packed(&"bread butter wine bread ".repeat(40))));
    assert!(!packed(&"bread butter ".repeat(40)).remarks.iter().any(|remark| remark.contains("[UNK]")));
}
