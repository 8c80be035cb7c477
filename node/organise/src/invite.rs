//! `muster invite`: one line that lets its holder enrol. Works while the steward holds the folder.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use muster_core::codec::{List, decode};
use muster_core::ids::RunId;
use muster_core::manifest::{Manifest, Mode};
use muster_core::messages::enrol::{Address, Addresses, Invitation, InvitationSecret, Pass, Role, Ticket};
use muster_core::sign::Identity;
use muster_net::clock::now;
use muster_replica::exit::{Failure, Outcome};
use muster_store::error::Kind;
use muster_store::{reading, regular, secrets};

use super::create::random;
use super::{ADDRESSES, MANIFEST, organiser_key};

/// Whom to invite.
#[derive(Clone, Debug)]
pub struct InviteOptions {
    /// The run's folder, or a member's directory.
    pub folder: PathBuf,
    /// As what. None: the line leads to a listed or open run and holds no invitation; a member invites nodes.
    pub role: Option<Role>,
    /// Whether they have weight without probation.
    pub founder: bool,
    /// How many members may use it.
    pub uses: u32,
    /// Seconds from now after which it is refused.
    pub valid_for: u64,
    /// Where the steward can be dialled; none for what `muster host` wrote down.
    pub addresses: Vec<String>,
    /// The organiser's key, if it is not in the run's folder.
    pub organiser_key: Option<PathBuf>,
}

impl InviteOptions {
    /// The signed invitation and its secret.
    ///
    /// # Errors
    /// [`Failure`] when the system gives no randomness.
    pub fn sign(&self, identity: &Identity, run: RunId, role: Role) -> Outcome<Pass> {
        let expires = now().saturating_add(self.valid_for);
        let (uses, founder) = (self.uses, self.founder);
        let secret = InvitationSecret::new(random()?);
        let invitation = Invitation { role, uses, expires, key: secret.key(), founder };
        Ok(Pass { invitation: identity.sign(run, &invitation), secret })
    }
}

/// Signs an invitation as the organiser.
///
/// # Errors
/// [`Failure`] when the folder is no run, nobody hosts it and no address is given, an address is malformed, or the
/// run takes nobody of this kind.
pub fn invite(options: &InviteOptions) -> Outcome<Ticket> {
    if options.founder && options.role != Some(Role::Node) {
        return Err(Failure::usage("--founder is for nodes: say --role node"));
    }
    let manifest = read_manifest(&options.folder)?;
    let organiser = organiser(&options.folder, options.organiser_key.as_deref(), &manifest)?;
    let addresses = if options.addresses.is_empty() {
        worth_telling(hosted_at(&options.folder)?)
    } else {
        options.addresses.clone()
    };
    if options.role.is_none() && manifest.admission.mode == Mode::Invited {
        return Err(Failure::usage("this run asks for invitations: say --role node or --role verifier"));
    }
    let run = manifest.run();
    let pass = options.role.map(|role| options.sign(&organiser, run, role)).transpose()?;
    Ok(Ticket { run, steward: manifest.steward, addresses: bounded(&addresses)?, pass })
}

/// The organiser's key, in a run's folder or elsewhere.
///
/// # Errors
/// [`Failure`] when it is missing, damaged, open to others, or that of another run.
pub fn organiser(folder: &Path, elsewhere: Option<&Path>, manifest: &Manifest) -> Outcome<Identity> {
    let path = organiser_key(folder, elsewhere);
    let secret = secrets::key(&path).map_err(|error| match error.kind() {
        Kind::Missing => Failure::environment(format!(
            "{}: the organiser's key is not there; say where it is: --organiser-key FILE",
            path.display()
        )),
        _ => error.into(),
    })?;
    let organiser = Identity::from_secret(&secret);
    if organiser.id() != manifest.organiser {
        return Err(Failure::environment(format!(
            "{}: is not the key of this run's organiser",
            path.display()
        )));
    }
    Ok(organiser)
}

/// The manifest in a run's folder.
///
/// # Errors
/// [`Failure`] when the folder is no run, or half made.
pub fn read_manifest(folder: &Path) -> Outcome<Manifest> {
    let path = folder.join(MANIFEST);
    let bytes = reading::manifest(folder).map_err(|error| {
        Failure::environment(format!(
            "{}: cannot be read ({}); name a folder that `muster run new` finished",
            path.display(),
            error.cause()
        ))
    })?;
    let manifest: Manifest = decode(&bytes).map_err(|reject| {
        Failure::environment(format!("{}: is damaged ({reject}); restore it from a copy", path.display()))
    })?;
    manifest.check().map_err(|misuse| Failure::environment(format!("{}: {misuse}", path.display())))?;
    Ok(manifest)
}

/// Where the steward of a folder was last reachable, as it wrote down.
///
/// # Errors
/// [`Failure`] when nobody has hosted it yet.
pub fn hosted_at(folder: &Path) -> Outcome<Vec<String>> {
    let path = folder.join(ADDRESSES);
    let text = regular::text(&path, regular::TEXT_BYTES).map_err(|_| {
        Failure::environment(format!(
            "{}: nobody hosts this run yet; start `muster host {}` first, or copy this file from where it is hosted \
             (an invitation also takes --address HOST:PORT)",
            path.display(),
            folder.display()
        ))
    })?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The addresses without those of the swarm on interfaces where nobody is told to dial: the swarm listens on every
/// bridge of a container engine, too, and the line would grow by each. All of them where none is beside another one.
fn worth_telling(addresses: Vec<String>) -> Vec<String> {
    let hosts: Vec<IpAddr> =
        addresses.iter().filter_map(|text| Some(text.parse::<SocketAddr>().ok()?.ip())).collect();
    let host = |text: &str| text.split('/').nth(2)?.parse::<IpAddr>().ok();
    let beside = |text: &String| host(text).is_some_and(|host| hosts.contains(&host));
    if !addresses.iter().any(beside) {
        return addresses;
    }
    addresses.into_iter().filter(|text| !text.starts_with('/') || beside(text)).collect()
}

/// Addresses as a member or ticket carries them.
///
/// # Errors
/// [`Failure`] for one that is no `HOST:PORT`, or for too many.
pub fn bounded(addresses: &[String]) -> Outcome<Addresses> {
    let wrong = |address: &str, why: String| {
        Failure::usage(format!("{address:?} is not an address HOST:PORT ({why})"))
    };
    let address = |text: &String| -> Outcome<Address> {
        // The multiaddress of a swarm: whoever reads it checks it.
        if text.starts_with('/') {
            return Address::new(text.as_str()).map_err(|misuse| wrong(text, misuse.to_string()));
        }
        let port = text
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(_, port)| port.parse::<u16>().ok());
        // Port 0 is for listening; nobody can dial it.
        if port.is_none_or(|port| port == 0) {
            return Err(wrong(text, "a host, a colon, and a port from 1 to 65535".into()));
        }
        Address::new(text.as_str()).map_err(|misuse| wrong(text, misuse.to_string()))
    };
    let addresses: Outcome<Vec<Address>> = addresses.iter().map(address).collect();
    List::new(addresses?).map_err(|misuse| Failure::usage(format!("too many addresses: {misuse}")))
}

/// Reads a span of time like `30s`, `45m`, `12h` or `7d`, in seconds.
///
/// # Errors
/// A sentence for the command line.
pub fn parse_span(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a span of time: use a number followed by s, m, h or d, like 12h");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time() {
        assert_eq!(parse_span("7d"), Ok(604_800));
        assert_eq!(parse_span("12h"), Ok(43_200));
        assert_eq!(parse_span("30m"), Ok(1800));
        assert_eq!(parse_span("0s"), Ok(0));
        for wrong in
            ["", "h", "7", "7w", "-1d", "1.5h", "ä", "99999999999999999999d", "18446744073709551615d"]
        {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_swarm_is_told_of_where_members_dial() {
        let told = |texts: &[&str]| worth_telling(texts.iter().map(|text| (*text).to_owned()).collect());
        let own = ["10.0.0.5:7", "127.0.0.1:7", "/ip4/127.0.0.1/tcp/8/p2p/x", "/ip4/10.0.0.5/tcp/8/p2p/x"];
        assert_eq!(told(&[&own[..], &["/ip4/172.17.0.1/tcp/8/p2p/x"]].concat()), own);
        let advertised = ["example.org:7", "/ip4/10.0.0.5/tcp/8/p2p/x"];
        assert_eq!(told(&advertised), advertised);
    }

    #[test]
    fn addresses_are_checked() {
        assert_eq!(bounded(&["example.org:80".into(), "[::1]:9".into()]).unwrap().len(), 2);
        for wrong in ["example.org", ":80", "host:0", "host:70000", "host:x", "a\n:80"] {
            assert!(bounded(&[wrong.to_owned()]).is_err(), "{wrong:?}");
        }
        assert!(bounded(&vec!["a:1".to_owned(); 9]).is_err());
    }
}
