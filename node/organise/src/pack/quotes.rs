//! Quotes of tables, looked at before rows are made of them.
//!
//! The library that makes rows takes every quote in some way: it joins rows where one is opened and not meant, and drops those
//! that it does not expect. Text would be lost in silence. So whatever other programs do not write is refused here.

use std::fmt;
use std::io::{self, Read};

/// Where the byte before lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before a field.
    Before,
    /// In a field without quotes around it.
    Bare,
    Quoted,
    /// At a quote within quotes: the end of them, or the first of two.
    Closing,
    /// In blanks behind a field in quotes.
    Behind,
}

/// A quote that nobody writes who means one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stray {
    /// Its line, or that of what follows it.
    pub(super) line: u64,
    pub(super) what: &'static str,
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl std::error::Error for Stray {}

/// A table's bytes, which end with an error of a [`Stray`] at the first one.
pub(super) struct Quotes<R> {
    source: R,
    delimiter: u8,
    place: Place,
    line: u64,
    /// The line of the quote before.
    quote: u64,
    /// The byte before was the first half of a line end of Windows.
    half: bool,
    stray: Option<Stray>,
}

impl<R: Read> Quotes<R> {
    pub(super) fn new(source: R, delimiter: u8) -> Self {
        Self { source, delimiter, place: Place::Before, line: 1, quote: 1, half: false, stray: None }
    }

    fn see(&mut self, byte: u8) -> Result<(), Stray> {
        let ends_line = matches!(byte, b'\n' | b'\r');
        let between = byte == self.delimiter || ends_line;
        let place = match (self.place, byte) {
            (Place::Before, b'"') => Place::Quoted,
            (Place::Quoted, b'"') => Place::Closing,
            (Place::Closing, b'"') | (Place::Quoted, _) => Place::Quoted,
            _ if between => Place::Before,
            (Place::Before | Place::Bare, _) => Place::Bare,
            (Place::Closing | Place::Behind, b' ') => Place::Behind,
            (Place::Closing | Place::Behind, _) => {
                let what = "has text behind the quote that ends a field";
                return Err(Stray { line: self.line, what });
            }
        };
        if byte == b'"' {
            self.quote = self.line;
        }
        self.line += u64::from(ends_line && !(byte == b'\n' && self.half));
        self.half = byte == b'\r';
        self.place = place;
        Ok(())
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(stray) = self.stray {
            return Err(io::Error::other(stray));
        }
        let read = self.source.read(into)?;
        if read == 0 && !into.is_empty() && self.place == Place::Quoted {
            let stray = Stray { line: self.quote, what: "has a quote that is never closed" };
            self.stray = Some(stray);
            return Err(io::Error::other(stray));
        }
        for (place, byte) in into[..read].iter().enumerate() {
            if let Err(stray) = self.see(*byte) {
                self.stray = Some(stray);
                // Rows before it are whole.
                return if place > 0 { Ok(place) } else { Err(io::Error::other(stray)) };
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(table: &str) -> (String, Option<Stray>) {
        let mut quotes = Quotes::new(table.as_bytes(), b',');
        let mut bytes = Vec::new();
        let error = quotes.read_to_end(&mut bytes).err();
        let stray = error.map(|error| *error.get_ref().unwrap().downcast_ref::<Stray>().unwrap());
        (String::from_utf8(bytes).unwrap(), stray)
    }

    #[test]
    fn only_quotes_around_a_whole_field_are_taken() {
        for table in [
            "",
            "a,b\n1,2\n",
            "\"a\",\"b\"\n1,\"2\"",
            "\"a \"\" b\",\"\"\r\n\"\"\"x\"\"\",\"two\n\"\"lines\"\r\n",
            "5\" disk,a \"word\" here\n",
            "\"blanks\"  ,\"too\" \n",
            " \"bare\",2\n",
        ] {
            assert_eq!(read(table), (table.to_owned(), None));
        }
        for (before, after, line) in [
            ("a\n\"Hello\"", " he said\n", 2),
            ("\"say \\\"", "hi\\\" to\"\n", 1),
            ("a\r\n\r\n\"open\n\n1,\"", "c\"\n", 5),
            ("a\r\r\"x\" ", "\"y\"\r", 3),
            ("a,b\n1,\"open\n2,c\n", "", 2),
            ("a\n\"\"\"\n", "", 2),
        ] {
            let (taken, stray) = read(&format!("{before}{after}"));
            assert_eq!(stray.unwrap().line, line, "{before}");
            assert_eq!(taken.trim_end(), before.trim_end(), "{before}");
        }
    }
}
