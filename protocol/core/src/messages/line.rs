//! A ticket as one line of text, short enough to be sent in a message: `muster1:` and base58.
//!
//! The line leaves out what follows from the rest: the invitation's public key (its secret is there), the run and the
//! length inside the signed envelope, and the steward's name inside its multiaddresses. `from_line` puts them back, so
//! that the signature is checked over the very bytes that were signed. LINE-1 to LINE-5 of spec/encoding.md: LINE-1 the line,
//! LINE-2 its parts, LINE-3 its addresses, LINE-4 their text, LINE-5 what is done to it on its way.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zeroize::Zeroizing;

use super::enrol::{Address, Addresses, Invitation, InvitationSecret, Pass, Role, Ticket};
use crate::codec::List;
use crate::error::Misuse;
use crate::ids::{Digest, MemberId, RunId};
use crate::limits;
use crate::sign::Signed;

const PREFIX: &str = "muster1:";
/// The first bytes of the hash of all before them. The signature guards the pass; these guard the addresses, too.
const CHECKSUM: usize = 2;
/// Longer than any ticket; base58 takes time that grows with the square of the length.
const LONGEST: usize = 4096;
/// Pieces of a line that are looked at one after the other, where it is not whole: more than any mail program makes of it.
const MOST_PIECES: usize = 64;
/// Expiry is counted from the beginning of 2026, which saves a byte until 2034.
const EPOCH: u64 = 1_767_225_600;

const COUNT: u8 = 0x0f;
const PASS: u8 = 0x10;
const VERIFIER: u8 = 0x20;
const FOUNDER: u8 = 0x40;

impl Ticket {
    /// One line of text, as secret as the pass in it.
    ///
    /// # Panics
    /// For a pass whose invitation is not even an encoded invitation: neither an organiser nor `from_line` makes one.
    pub fn to_line(&self) -> Zeroizing<String> {
        let mut bytes = self.pack();
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        let digits = Zeroizing::new(bs58::encode(&*bytes).into_string());
        Zeroizing::new([PREFIX, &digits].concat())
    }

    /// Reads the line, also as mail programs and editors hand it on (LINE-5).
    ///
    /// # Errors
    /// [`Misuse`] when it is no ticket or was damaged, or its secret is not that of its invitation.
    pub fn from_line(text: &str) -> Result<Self, Misuse> {
        let Pieces { digits, ends } = Pieces::of(text)?;
        let whole = Self::from_digits(&digits);
        if whole.is_ok() {
            return whole;
        }
        // The words behind a line follow it as its own pieces do.
        let mut shorter = ends.iter().take(MOST_PIECES).map(|end| Self::from_digits(&digits[..*end]));
        shorter.find_map(Result::ok).map_or(whole, Ok)
    }

    fn from_digits(digits: &str) -> Result<Self, Misuse> {
        let cut = |why: &str| Misuse(format!("the invitation is damaged ({why}): copy the whole line again"));
        if digits.len() > LONGEST {
            return Err(cut("it is longer than any invitation"));
        }
        let bytes = bs58::decode(digits).into_vec().map_err(|error| cut(&error.to_string()))?;
        let bytes = Zeroizing::new(bytes);
        let (body, sum) = bytes
            .split_last_chunk::<CHECKSUM>()
            .filter(|(body, _)| !body.is_empty())
            .ok_or_else(|| cut("most of it is missing"))?;
        if *sum != checksum(body) {
            return Err(cut("its checksum does not fit: a character is missing or wrong"));
        }
        let ticket = TicketReader(body).ticket().ok_or_else(|| cut("its parts do not fit together"))?;
        let fits = ticket.pass.as_ref().map(|pass| pass.verify(ticket.run)).transpose();
        fits.map_err(|reject| cut(&reject.to_string()))?;
        // LINE-1: one line for each ticket.
        if *ticket.pack() != *body {
            return Err(cut("its parts are not written as they should be"));
        }
        Ok(ticket)
    }

    /// LINE-2: run, steward, flags, pass, addresses.
    fn pack(&self) -> Zeroizing<Vec<u8>> {
        // Never grown, so that no copy of the secret stays behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST));
        bytes.extend_from_slice(&self.run.0.0);
        bytes.extend_from_slice(&self.steward.0);
        let count = u8::try_from(self.addresses.len()).expect("a ticket holds few addresses");
        match &self.pass {
            None => bytes.push(count),
            Some(pass) => {
                let invitation = pass.invitation.claimed().expect("a pass holds an invitation");
                let verifier = if invitation.role == Role::Verifier { VERIFIER } else { 0 };
                let founder = if invitation.founder { FOUNDER } else { 0 };
                bytes.push(count | PASS | verifier | founder);
                pack_number(invitation.uses.into(), &mut bytes);
                pack_number(invitation.expires.wrapping_sub(EPOCH), &mut bytes);
                bytes.extend_from_slice(&pass.invitation.claimed_signer().0);
                bytes.extend_from_slice(pass.invitation.signature());
                bytes.extend_from_slice(pass.secret.bytes());
            }
        }
        let mut before = Before::default();
        self.addresses
            .iter()
            .for_each(|address| pack_address(address, self.steward, &mut before, &mut bytes));
        bytes
    }
}

/// What may be the digits of a line, in one piece.
struct Pieces {
    digits: Zeroizing<String>,
    /// Where its pieces end.
    ends: Vec<usize>,
}

impl Pieces {
    /// LINE-5: "Space and what is invisible do not count, and neither does what marks quoted or broken lines; any other
    /// character that is no letter or digit ends the line."
    fn of(text: &str) -> Result<Self, Misuse> {
        // Some keyboards begin each text with a capital. No changed copy is made, since it would hold the secret, too.
        let mut places = text.as_bytes().windows(PREFIX.len());
        let at = places.position(|place| place.eq_ignore_ascii_case(PREFIX.as_bytes()));
        let at = at.ok_or_else(|| Misuse(format!("an invitation starts with {PREFIX:?}")))?;
        // Never grown, so that no copy of the secret stays behind.
        let (mut digits, mut ends) = (Zeroizing::new(String::with_capacity(text.len())), Vec::new());
        let mut rest = text[at + PREFIX.len()..].chars().peekable();
        let mut fresh = true;
        while let Some(character) = rest.next() {
            let broken = rest.peek().is_none_or(|next| matches!(next, '\n' | '\r'));
            match character {
                _ if character.is_alphanumeric() => digits.push(character),
                _ if character.is_whitespace() => {
                    if ends.last() != Some(&digits.len()) {
                        ends.push(digits.len());
                    }
                    fresh |= matches!(character, '\n' | '\r');
                    continue;
                }
                // Of no width, and the mark of a byte order.
                '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' => continue,
                '>' | '|' if fresh => continue,
                '=' | '\\' | '-' if broken => continue,
                _ => break,
            }
            fresh = false;
        }
        ends.push(digits.len());
        Ok(Self { digits, ends })
    }
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM] {
    let [first, second, ..] = *blake3::hash(body).as_bytes();
    [first, second]
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn pack_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The host of an address, in the lowest three bits of its first byte.
const TEXT: u8 = 0;
const V4: u8 = 1;
const V6: u8 = 2;
const LOOPBACK_V4: u8 = 3;
const LOOPBACK_V6: u8 = 4;
const FIRST_HOST: u8 = 5;
const HOST: u8 = 7;
/// A multiaddress of the steward in the swarm.
const SWARM: u8 = 8;
/// The port of the last address of this kind.
const SAME_PORT: u8 = 16;

/// What later addresses need not repeat.
#[derive(Default)]
struct Before {
    host: Option<IpAddr>,
    port: Option<u16>,
    swarm_port: Option<u16>,
}

impl Before {
    fn port(&mut self, swarm: bool) -> &mut Option<u16> {
        if swarm { &mut self.swarm_port } else { &mut self.port }
    }
}

/// An address that is a number.
struct NumericAddress {
    host: IpAddr,
    port: u16,
    swarm: bool,
}

impl NumericAddress {
    /// `None` for any text but the one of [`NumericAddress::text`].
    fn of(text: &str, steward: MemberId) -> Option<Self> {
        let address = match text.strip_prefix('/') {
            None => {
                let socket: SocketAddr = text.parse().ok()?;
                Self { host: socket.ip(), port: socket.port(), swarm: false }
            }
            Some(rest) => {
                let mut parts = rest.split('/').skip(1).step_by(2);
                Self { host: parts.next()?.parse().ok()?, port: parts.next()?.parse().ok()?, swarm: true }
            }
        };
        (address.text(steward) == text).then_some(address)
    }

    /// LINE-4: the one text of an address.
    fn text(&self, steward: MemberId) -> String {
        let Self { host, port, swarm } = self;
        if !swarm {
            return SocketAddr::new(*host, *port).to_string();
        }
        let version = if host.is_ipv4() { 4 } else { 6 };
        // How libp2p names an Ed25519 key: the identity multihash of its protobuf encoding.
        let name = [&[0, 36, 8, 1, 18, 32], &steward.0[..]].concat();
        format!("/ip{version}/{host}/tcp/{port}/p2p/{}", bs58::encode(name).into_string())
    }
}

/// LINE-3: what the address before, or the kind alone, gives is left out.
fn pack_address(text: &Address, steward: MemberId, before: &mut Before, bytes: &mut Vec<u8>) {
    let Some(NumericAddress { host, port, swarm }) = NumericAddress::of(text, steward) else {
        bytes.push(TEXT);
        pack_number(text.len() as u64, bytes);
        bytes.extend_from_slice(text.as_bytes());
        return;
    };
    let kind = match host {
        _ if before.host == Some(host) => FIRST_HOST,
        IpAddr::V4(Ipv4Addr::LOCALHOST) => LOOPBACK_V4,
        IpAddr::V6(Ipv6Addr::LOCALHOST) => LOOPBACK_V6,
        IpAddr::V4(_) => V4,
        IpAddr::V6(_) => V6,
    };
    let same_port = before.port(swarm).replace(port) == Some(port);
    before.host.get_or_insert(host);
    bytes.push(kind | if swarm { SWARM } else { 0 } | if same_port { SAME_PORT } else { 0 });
    match host {
        IpAddr::V4(v4) if kind == V4 => bytes.extend_from_slice(&v4.octets()),
        IpAddr::V6(v6) if kind == V6 => bytes.extend_from_slice(&v6.octets()),
        _ => {}
    }
    if !same_port {
        bytes.extend_from_slice(&port.to_be_bytes());
    }
}

/// What is left to read.
struct TicketReader<'a>(&'a [u8]);

impl TicketReader<'_> {
    fn ticket(mut self) -> Option<Ticket> {
        let run = RunId(Digest(self.take()?));
        let steward = MemberId(self.take()?);
        let [flags] = self.take()?;
        let pass = if flags & PASS != 0 { Some(self.pass(run, flags)?) } else { None };
        let mut before = Before::default();
        let addresses: Option<Vec<Address>> =
            (0..flags & COUNT).map(|_| self.address(steward, &mut before)).collect();
        let addresses: Addresses = List::new(addresses?).ok()?;
        self.0.is_empty().then_some(Ticket { run, steward, addresses, pass })
    }

    fn pass(&mut self, run: RunId, flags: u8) -> Option<Pass> {
        let uses = u32::try_from(self.number()?).ok()?;
        let expires = self.number()?.wrapping_add(EPOCH);
        let signer = MemberId(self.take()?);
        let signature = self.take()?;
        let secret = InvitationSecret::new(self.take()?);
        let role = if flags & VERIFIER != 0 { Role::Verifier } else { Role::Node };
        let invitation = Invitation { role, uses, expires, key: secret.key(), founder: flags & FOUNDER != 0 };
        Some(Pass { invitation: Signed::claim(run, signer, signature, &invitation), secret })
    }

    fn address(&mut self, steward: MemberId, before: &mut Before) -> Option<Address> {
        let [kind] = self.take()?;
        if kind == TEXT {
            let length =
                usize::try_from(self.number()?).ok().filter(|length| *length <= limits::TEXT_BYTES)?;
            let (text, rest) = self.0.split_at_checked(length)?;
            self.0 = rest;
            return Address::new(core::str::from_utf8(text).ok()?).ok();
        }
        let host = match kind & HOST {
            V4 => IpAddr::from(self.take::<4>()?),
            V6 => IpAddr::from(self.take::<16>()?),
            LOOPBACK_V4 => Ipv4Addr::LOCALHOST.into(),
            LOOPBACK_V6 => Ipv6Addr::LOCALHOST.into(),
            FIRST_HOST => before.host?,
            _ => return None,
        };
        let swarm = kind & SWARM != 0;
        let port =
            if kind & SAME_PORT != 0 { (*before.port(swarm))? } else { u16::from_be_bytes(self.take()?) };
        *before.port(swarm) = Some(port);
        before.host.get_or_insert(host);
        Address::new(NumericAddress { host, port, swarm }.text(steward)).ok()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for digit in 0..10 {
            let [byte] = self.take()?;
            number |= u64::from(byte & 0x7f) << (7 * digit);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::Identity;

    const RUN: RunId = RunId(Digest([0xff; 32]));

    fn ticket(addresses: &[&str], uses: u32, expires: u64, role: Role) -> Ticket {
        let steward = Identity::from_secret(&[1; 32]).id();
        let addresses = addresses.iter().map(|text| Address::new(*text).unwrap()).collect();
        let secret = InvitationSecret::new([0xff; 32]);
        let invitation = Invitation { role, uses, expires, key: secret.key(), founder: role == Role::Node };
        let invitation = Identity::from_secret(&[2; 32]).sign(RUN, &invitation);
        let pass = Some(Pass { invitation, secret });
        Ticket { run: RUN, steward, addresses: List::new(addresses).unwrap(), pass }
    }

    /// As `muster host` writes them down that listens on every address.
    fn default_addresses(steward: MemberId) -> Vec<String> {
        let swarm =
            |host: [u8; 4]| NumericAddress { host: host.into(), port: 65_533, swarm: true }.text(steward);
        let (own, loopback) = ([192, 168, 178, 123], [127, 0, 0, 1]);
        vec!["192.168.178.123:65534".into(), "127.0.0.1:65534".into(), swarm(loopback), swarm(own)]
    }

    #[test]
    fn a_line_of_a_host_with_default_settings_is_short() {
        let steward = Identity::from_secret(&[1; 32]).id();
        let addresses = default_addresses(steward);
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        for (uses, role) in [(1, Role::Node), (10_000, Role::Verifier)] {
            let ticket = ticket(&addresses, uses, EPOCH + (1 << 28) - 1, role);
            let line = ticket.to_line();
            assert!(line.len() < 300, "{}: {}", line.len(), *line);
            assert_eq!(Ticket::from_line(&line).unwrap(), ticket);
        }
    }

    #[test]
    fn every_ticket_has_one_line() {
        let steward = Identity::from_secret(&[1; 32]).id();
        let foreign =
            NumericAddress { host: [10, 0, 0, 1].into(), port: 9, swarm: true }.text(MemberId([3; 32]));
        let own = NumericAddress { host: Ipv6Addr::LOCALHOST.into(), port: 9, swarm: true }.text(steward);
        let lists: [&[&str]; 5] = [
            &[],
            &[
                "example.org:7777",
                "[::1]:7777",
                "[2001:db8::1]:7777",
                "10.0.0.1:1",
                "10.0.0.1:2",
                "10.0.0.1:2",
            ],
            &["127.0.0.1:080", "010.0.0.1:80", "[::0001]:80", "[::ffff:1.2.3.4]:1", "[fe80::1%2]:1"],
            &[&foreign, &own, "/ip4/1.2.3.4/tcp/5", "/ip4/1.2.3.4/udp/5/p2p/x", "/", "//"],
            &["", ":", "1.2.3.4:5", "1.2.3.4:5", &own],
        ];
        for addresses in lists {
            for (uses, expires) in [(0, 0), (127, EPOCH - 1), (128, EPOCH), (u32::MAX, u64::MAX)] {
                let whole = ticket(addresses, uses, expires, Role::Node);
                assert_eq!(Ticket::from_line(&whole.to_line()).unwrap(), whole);
                let bare = Ticket { pass: None, ..whole };
                assert_eq!(Ticket::from_line(&format!(" {}\n", *bare.to_line())).unwrap(), bare);
            }
        }
    }

    /// LINE-5, by what is done to lines between two people.
    #[test]
    fn line_5_what_mail_programs_and_editors_do_to_a_line_is_forgiven() {
        let whole = ticket(&["example.org:7777", "10.0.0.1:5"], 20, EPOCH, Role::Node);
        let bare = Ticket { pass: None, ..whole.clone() };
        for ticket in [whole, bare] {
            let line = ticket.to_line().to_string();
            let pieces: Vec<&str> =
                line.as_bytes().chunks(60).map(|piece| core::str::from_utf8(piece).unwrap()).collect();
            let (head, digits) = line.split_at(PREFIX.len());
            let changed = [
                format!("\u{feff}{line}\r\n"),
                format!("  \t{line}\u{a0}"),
                pieces.join("\n"),
                pieces.join("\r\n    "),
                pieces.join(" "),
                pieces.join("=\n"),
                pieces.join("\\\n"),
                pieces.join("-\n"),
                pieces.join("\u{200b}"),
                format!("> {}", pieces.join("\n> ")),
                format!(">> {}\n", pieces.join("\n>> ")),
                format!("\"{line}\""),
                format!("'{line}'"),
                format!("\u{201c}{line}\u{201d}"),
                format!("\u{ab} {line} \u{bb}"),
                format!("<{line}>"),
                format!("`{line}`"),
                format!("**{line}**"),
                format!("({line})."),
                format!("{line}."),
                format!("{line},"),
                format!("{line}!\nSee you, Ann"),
                format!("{line}\n\n-- \nAnn, example.org"),
                format!("{}\nBest wishes\nAnn", pieces.join("\n")),
                format!("{line}\n{}", "word ".repeat(1000)),
                format!("Here is your invitation: {line}"),
                format!("muster join {line} --threads 2"),
                format!("Muster1:{digits}"),
                format!("{head} {digits}"),
                format!("{head}\n{digits}"),
            ];
            for text in changed {
                assert_eq!(Ticket::from_line(&text).as_ref(), Ok(&ticket), "{text:?}");
            }
            // What takes or adds a character is damage, wherever it is.
            for text in
                [format!("{line}x"), format!("{line} x y").replace(' ', ""), line[..line.len() - 1].into()]
            {
                assert!(Ticket::from_line(&text).is_err(), "{text:?}");
            }
        }
    }

    #[test]
    fn a_damaged_line_says_what_is_wrong() {
        let line = ticket(&["example.org:7777"], 1, EPOCH, Role::Node).to_line();
        let refusal = |line: &str| Ticket::from_line(line).unwrap_err().to_string();
        assert!(refusal(&line[1..]).contains("starts with \"muster1:\""));
        for cut in 1..line.len() - PREFIX.len() {
            assert!(refusal(&line[..line.len() - cut]).contains("damaged"), "{cut}");
        }
        assert!(refusal(&line[..100]).contains("a character is missing or wrong"));
        assert!(refusal(PREFIX).contains("most of it is missing"));
        assert!(refusal(&[&line[..50], "0", &line[51..]].concat()).contains("'0'"));
        assert!(refusal(&[&line, "ä"].concat()).contains("non-ascii"));
        assert!(refusal(&[PREFIX, &"2".repeat(LONGEST + 1)].concat()).contains("longer"));
        let mut passed = 0;
        for place in PREFIX.len()..line.len() {
            let other = if line.as_bytes()[place] == b'2' { "3" } else { "2" };
            passed +=
                usize::from(Ticket::from_line(&[&line[..place], other, &line[place + 1..]].concat()).is_ok());
        }
        assert_eq!(passed, 0);
    }

    #[test]
    fn a_line_with_two_readings_is_refused() {
        let whole = ticket(&["10.0.0.1:5"], 1, EPOCH, Role::Node);
        let bare = Ticket { pass: None, ..whole };
        let body = bare.pack();
        let line = |body: &[u8]| {
            let bytes = [body, &checksum(body)].concat();
            [PREFIX, &bs58::encode(bytes).into_string()].concat()
        };
        assert_eq!(Ticket::from_line(&line(&body)).unwrap(), bare);
        let text = [&body[..65], &[TEXT, 10], b"10.0.0.1:5"].concat();
        let long = [&body[..], &[0]].concat();
        let mut flagged = body.to_vec();
        flagged[64] |= VERIFIER;
        for wrong in [text, long, flagged] {
            assert!(Ticket::from_line(&line(&wrong)).is_err(), "{wrong:?}");
        }
    }
}
