//! How far an address reaches: from one machine to the whole internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// From where an address can be dialled, the smallest circle first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// From this machine alone: loopback.
    Machine,
    /// On one link: link-local addresses.
    Link,
    /// Within one site: private addresses, and those that a provider shares among its customers.
    Site,
    /// From everywhere.
    Internet,
}

impl Reach {
    /// Of an address; `None` for one that no single machine has: unspecified, multicast, broadcast, reserved.
    pub fn of(address: IpAddr) -> Option<Self> {
        match address.to_canonical() {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

fn of_v4(address: Ipv4Addr) -> Option<Reach> {
    let [first, second, ..] = address.octets();
    // 0.0.0.0/8 is "this network"; 240.0.0.0/4 is reserved and holds the broadcast address.
    if first == 0 || first >= 240 || address.is_multicast() {
        return None;
    }
    let shared = first == 100 && second & 0xc0 == 64;
    Some(match address {
        _ if address.is_loopback() => Reach::Machine,
        _ if address.is_link_local() => Reach::Link,
        _ if address.is_private() || shared => Reach::Site,
        _ => Reach::Internet,
    })
}

fn of_v6(address: Ipv6Addr) -> Option<Reach> {
    if address.is_unspecified() || address.is_multicast() {
        return None;
    }
    let first = address.segments()[0];
    Some(match address {
        _ if address.is_loopback() => Reach::Machine,
        _ if first & 0xffc0 == 0xfe80 => Reach::Link,
        // fc00::/7, and the site-local fec0::/10 of old.
        _ if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 => Reach::Site,
        // An IPv4 address behind a translator or a tunnel reaches as far as that address.
        _ => return embedded(address).map_or(Some(Reach::Internet), of_v4),
    })
}

/// The IPv4 address to which a NAT64 (64:ff9b::/96), a 6to4 (2002::/16) or an IPv4-compatible address leads.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let last = Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0x64, 0xff9b, 0, 0, 0, 0] | [0, 0, 0, 0, 0, 0] => Some(last),
        [0x2002, ..] => Some(Ipv4Addr::from_bits(u32::from(b) << 16 | u32::from(c))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_reach_as_far_as_their_kind() {
        let of = |text: &str| Reach::of(text.parse().unwrap());
        for (reach, texts) in [
            (Some(Reach::Machine), &["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"][..]),
            (Some(Reach::Link), &["169.254.1.1", "fe80::1"]),
            (
                Some(Reach::Site),
                &["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "64:ff9b::10.0.0.1"],
            ),
            (
                Some(Reach::Internet),
                &["8.8.8.8", "100.128.0.1", "172.32.0.1", "2001:db8::1", "2002:808:808::1"],
            ),
            (None, &["0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "ff02::1"]),
        ] {
            for text in texts {
                assert_eq!(of(text), reach, "{text}");
            }
        }
        assert_eq!(of("64:ff9b::127.0.0.1"), Some(Reach::Machine));
        assert_eq!(of("2002:7f00:1::1"), Some(Reach::Machine));
        assert!(Reach::Machine < Reach::Link && Reach::Site < Reach::Internet);
    }
}
