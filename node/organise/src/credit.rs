//! `muster credit`: what a member has done, as a statement that it signs and anybody can check (STAND-13).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use muster_core::codec::{Text, decode, encode};
use muster_core::ids::{Digest, Height, MemberId, RunId};
use muster_core::ledger::{Ledger, Member, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::service::Statement;
use muster_core::sign::{Signed, Verified};
use muster_net::endpoint::Endpoint;
use muster_replica::archive::read_ledger;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{Contact, Peers, fetch_manifest, follow_ledger, ledger_at};
use muster_view::words::counted;

use crate::invite::{bounded, read_manifest};
use crate::members::{LEDGER, Way, stranger, way};

const PREFIX: &str = "muster-service1:";
/// The first bytes of the hash of all before them: a mistyped line is told apart from a false one.
const CHECKSUM: usize = 4;
/// Longer than any statement; base58 takes time that grows with the square of the length.
const LONGEST: usize = 4096;

/// What a statement that was checked, or that was just made, says.
pub struct Stated {
    line: String,
    name: String,
    run: String,
    member: MemberId,
    banned: bool,
    verifiers: usize,
    statement: Statement,
}

impl Stated {
    /// The statement as one line.
    pub fn line(&self) -> &str {
        &self.line
    }
}

impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, run, member, banned, verifiers, statement, .. } = self;
        let called = if name.is_empty() { String::new() } else { format!(" ({name})") };
        write!(
            f,
            "member {member:#}{called} of run {run}: {} recomputed and found right by {}, {} counted, by record {}",
            counted(statement.recomputed, "leaf"),
            counted(*verifiers, "verifier"),
            statement.counted,
            statement.height.0.saturating_sub(1)
        )?;
        if *banned {
            write!(f, "; it was banned by then")?;
        }
        if statement.note.is_empty() {
            Ok(())
        } else {
            write!(f, "; its note: {}", statement.note.escape_debug())
        }
    }
}

/// Signs what the member of a data directory has done until now. The run may be over, if the steward still serves it.
///
/// # Errors
/// [`Failure`]: the directory belongs to no member, the steward cannot be reached, or the note is too long.
pub async fn state(data_dir: &Path, note: &str) -> Outcome<Stated> {
    let Way { manifest, steward, identity, peers } = way(data_dir).await?;
    let mut ledger = Ledger::new(manifest.clone());
    follow_ledger(&peers, &steward, &mut ledger).await?;
    let member = ledger.member(&identity.id()).ok_or_else(|| {
        Failure::usage(format!(
            "{}: its key is no member of the run; name a member's directory with --data-dir",
            data_dir.display()
        ))
    })?;
    let note = Text::new(note).map_err(|misuse| Failure::usage(format!("--note: {misuse}")))?;
    let statement = Statement {
        height: ledger.height(),
        head: ledger.head(),
        recomputed: ledger.credit(member),
        counted: member.service.leaves,
        note,
        steward: steward.member,
        addresses: bounded(&steward.addresses)?,
    };
    let signed = identity.sign(manifest.run(), &statement);
    Ok(stated(&manifest, member, statement, to_line(&signed)))
}

/// Checks a statement, with the records of a run's folder, or those that the steward it names has.
///
/// # Errors
/// [`Failure`], negative where the statement is not true.
pub async fn check(line: &str, folder: Option<&Path>) -> Outcome<Stated> {
    let (run, statement) = from_line(line)?;
    let height = statement.height;
    let (manifest, ledger) = match folder {
        Some(folder) => {
            let manifest = Arc::new(read_manifest(folder)?);
            if manifest.run() != run {
                return Err(Failure::usage(format!(
                    "{} is not the run of the statement, {run:#}",
                    folder.display()
                )));
            }
            if !folder.join(LEDGER).exists() {
                return Err(Failure::usage(format!(
                    "{}: the run is not over and its records are with the steward: leave --run out",
                    folder.display()
                )));
            }
            let ledger = archived(folder, &manifest, height)?;
            (manifest, ledger)
        }
        None => {
            let peers = Peers::new(Endpoint::new(run, stranger()?));
            let addresses = statement.addresses.iter().map(|address| address.to_string()).collect();
            let steward = Contact { member: statement.steward, addresses };
            let manifest = fetch_manifest(&peers, &steward, run).await?;
            let ledger = ledger_at(&peers, &steward, &manifest, height).await?;
            (manifest, ledger)
        }
    };
    let member = holds(&statement, &ledger);
    let member = member.map_err(|why| Failure::negative(format!("the statement is not true: {why}")))?;
    Ok(stated(&manifest, member, statement.into_inner(), line.trim().to_owned()))
}

/// STAND-13: the member, if the ledger of so many records says of it what the statement does.
fn holds<'a>(statement: &Verified<Statement>, ledger: &'a Ledger) -> Result<&'a Member, String> {
    let Statement { height, head, recomputed, counted: leaves, .. } = &**statement;
    if ledger.height() != *height || ledger.head() != *head {
        return Err(format!("the run has no {} that end as it says", counted(height.0, "record")));
    }
    let author = statement.author();
    let member = ledger.member(&author).ok_or_else(|| format!("{author} is no member by then"))?;
    let (credit, counts) = (ledger.credit(member), member.service.leaves);
    if (credit, counts) != (*recomputed, *leaves) {
        return Err(format!(
            "by the records it is {} recomputed and {counts} counted, and not {recomputed} and {leaves}",
            counted(credit, "leaf")
        ));
    }
    Ok(member)
}

fn stated(manifest: &Manifest, member: &Member, statement: Statement, line: String) -> Stated {
    let (name, run) = (member.name.to_string(), format!("{:#}", manifest.run()));
    let banned = member.standing == Standing::Banned;
    Stated { line, name, run, member: member.id, banned, verifiers: member.credits.len(), statement }
}

fn archived(folder: &Path, manifest: &Arc<Manifest>, height: Height) -> Outcome<Ledger> {
    let damaged =
        |why: String| Failure::environment(format!("{}: is damaged ({why})", folder.join(LEDGER).display()));
    let mut ledger = Ledger::new(manifest.clone());
    let records = read_ledger(folder).map_err(|error| damaged(error.to_string()))?;
    for record in records.iter().take(usize::try_from(height.0).unwrap_or(usize::MAX)) {
        ledger.apply(record).map_err(|reject| damaged(reject.to_string()))?;
    }
    Ok(ledger)
}

fn to_line(signed: &Signed<Statement>) -> String {
    let mut bytes = encode(signed);
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum);
    format!("{PREFIX}{}", bs58::encode(bytes).into_string())
}

/// The run of a statement, and what its author has signed.
fn from_line(line: &str) -> Outcome<(RunId, Verified<Statement>)> {
    let wrong =
        |why: &str| Failure::usage(format!("the statement is damaged ({why}): copy the whole line again"));
    let at = line
        .find(PREFIX)
        .ok_or_else(|| Failure::usage(format!("a statement of service starts with {PREFIX:?}")))?;
    // Space is what mail programs put into long lines.
    let digits: String = line[at + PREFIX.len()..].chars().filter(char::is_ascii_alphanumeric).collect();
    if digits.len() > LONGEST {
        return Err(wrong("it is longer than any"));
    }
    let bytes = bs58::decode(digits).into_vec().map_err(|error| wrong(&error.to_string()))?;
    let (body, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or_else(|| wrong("most of it is missing"))?;
    if *sum != checksum(body) {
        return Err(wrong("its checksum does not fit"));
    }
    // SIGN-4: the run comes first.
    let run =
        body.first_chunk().map(|run| RunId(Digest(*run))).ok_or_else(|| wrong("most of it is missing"))?;
    let signed: Signed<Statement> = decode(body).map_err(|reject| wrong(&reject.to_string()))?;
    let verified = signed.verify(run);
    Ok((
        run,
        verified
            .map_err(|reject| Failure::negative(format!("the statement is not its member's: {reject}")))?,
    ))
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM] {
    let [first, second, third, fourth, ..] = *blake3::hash(body).as_bytes();
    [first, second, third, fourth]
}

#[cfg(test)]
mod tests {
    use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
    use muster_core::messages::enrol::Addresses;
    use muster_core::sign::Identity;

    use super::*;

    /// The first round of a run has begun.
    fn scene() -> (Makers, Ledger, Identity) {
        let (makers, member) = (Makers::of(1, 2), Identity::from_secret(&[3; 32]));
        let ledger = makers.begin(makers.tiny(4, 1), [Newcomer::node(&member)]);
        (makers, ledger, member)
    }

    fn statement(ledger: &Ledger, member: &Identity) -> Statement {
        let known = ledger.member(&member.id()).unwrap();
        Statement {
            height: ledger.height(),
            head: ledger.head(),
            recomputed: ledger.credit(known),
            counted: known.service.leaves,
            note: Text::new("for Ann").unwrap(),
            steward: ledger.manifest().steward,
            addresses: Addresses::default(),
        }
    }

    #[test]
    fn stand_13_a_statement_says_what_the_records_say_and_nothing_else() {
        let (makers, mut ledger, author) = scene();
        let true_one = statement(&ledger, &author);
        let verdict = |author: &Identity, statement: &Statement, ledger: &Ledger| {
            let (run, statement) = from_line(&to_line(&author.sign(ledger.run(), statement))).unwrap();
            assert_eq!(run, ledger.run());
            holds(&statement, ledger).map(|member| member.id)
        };
        assert_eq!(verdict(&author, &true_one, &ledger), Ok(author.id()));
        let other = |change: fn(&mut Statement)| {
            let mut statement = true_one.clone();
            change(&mut statement);
            statement
        };
        for wrong in [
            other(|service| service.counted += 1),
            other(|service| service.recomputed += 1),
            other(|service| service.head = Digest::default()),
            other(|service| service.height = service.height.next()),
        ] {
            assert!(verdict(&author, &wrong, &ledger).is_err(), "{wrong:?}");
        }
        assert!(verdict(&Identity::from_secret(&[9; 32]), &true_one, &ledger).is_err(), "of nobody");
        // By a later record it is another statement.
        let commit = commitment(&ledger, &author, 1, Digest::default());
        makers.freeze(&mut ledger, [(&author, commit)]);
        assert!(verdict(&author, &true_one, &ledger).is_err());
    }

    #[test]
    fn a_damaged_line_is_no_statement_and_a_broken_one_is() {
        let (_, ledger, author) = scene();
        let line = to_line(&author.sign(ledger.run(), &statement(&ledger, &author)));
        let (head, tail) = line.split_at(90);
        assert_eq!(from_line(&format!("> {head}\n> {tail}\n")).unwrap(), from_line(&line).unwrap());
        for wrong in ["hello", PREFIX, &line[..line.len() - 1], &format!("{line}2")] {
            assert!(from_line(wrong).is_err(), "{wrong}");
        }
        // Signed by one member, and shown as another's.
        let mut bytes = encode(&author.sign(ledger.run(), &statement(&ledger, &author)));
        bytes[32..64].copy_from_slice(&Identity::from_secret(&[9; 32]).id().0);
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        let stolen = from_line(&format!("{PREFIX}{}", bs58::encode(bytes).into_string())).unwrap_err();
        assert!(stolen.message.contains("not its member's"), "{stolen}");
    }
}
