//! Known escapes from a container, and the versions of runc that fix them.

/// A version of runc; release candidates are ordered before their release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    candidate: u32,
}

const RELEASED: u32 = u32::MAX;

const fn release(major: u32, minor: u32, patch: u32) -> Version {
    Version { major, minor, patch, candidate: RELEASED }
}

struct Escape {
    name: &'static str,
    /// The first fixed version of each release line, the oldest line first.
    fixed: &'static [Version],
}

const FIXES_OF_2025: &[Version] =
    &[release(1, 2, 8), release(1, 3, 3), Version { candidate: 3, ..release(1, 4, 0) }];

const ESCAPES: [Escape; 4] = [
    Escape { name: "CVE-2024-21626", fixed: &[release(1, 1, 12)] },
    Escape { name: "CVE-2025-31133", fixed: FIXES_OF_2025 },
    Escape { name: "CVE-2025-52565", fixed: FIXES_OF_2025 },
    Escape { name: "CVE-2025-52881", fixed: FIXES_OF_2025 },
];

impl Version {
    /// `1.1.12`, `v1.4.0-rc.2`, `1.1.5+ds1`, `1.1.12-0ubuntu2`: the suffix of a distribution is
    /// ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (numbers, rest) = text.split_at_checked(end)?;
        let mut numbers = numbers.trim_end_matches('.').split('.').map(|number| number.parse::<u32>().ok());
        let (major, minor) = (numbers.next()??, numbers.next()??);
        let patch = numbers.next().unwrap_or(Some(0))?;
        let candidate = rest.strip_prefix(['-', '~']).and_then(|rest| rest.strip_prefix("rc"));
        let candidate = candidate.map_or(RELEASED, |rest| {
            let digits: String =
                rest.trim_start_matches('.').chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or(0)
        });
        Some(Self { major, minor, patch, candidate })
    }

    /// Whether the version is at least the fixed one of its own line, or newer than all affected lines.
    fn is_fixed(self, fixed: &[Version]) -> bool {
        let own_line = |fix: &&Version| (fix.major, fix.minor) == (self.major, self.minor);
        fixed.iter().find(own_line).or(fixed.last()).is_some_and(|fix| self >= *fix)
    }

    /// Names of the escapes that this version does not fix.
    pub fn open(self) -> Vec<&'static str> {
        ESCAPES.iter().filter(|escape| !self.is_fixed(escape.fixed)).map(|escape| escape.name).collect()
    }

    pub fn is_at_least(self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> usize {
        Version::parse(text).unwrap().open().len()
    }

    #[test]
    fn each_line_of_releases_has_its_own_fix() {
        for (version, escapes) in [
            ("1.0.0-rc93", 4),
            ("1.1.5+ds1", 4),
            ("1.1.11", 4),
            ("v1.1.12", 3),
            ("1.1.12-0ubuntu2~22.04.1", 3),
            ("1.2.7", 3),
            ("1.2.8", 0),
            ("1.3.0", 3),
            ("1.3.2", 3),
            ("1.3.3", 0),
            ("1.4.0-rc.2", 3),
            ("1.4.0~rc.3", 0),
            ("1.4.0", 0),
            ("1.5", 0),
            ("2.0.0", 0),
        ] {
            assert_eq!(open(version), escapes, "{version}");
        }
    }

    #[test]
    fn what_is_no_version_is_none() {
        for text in ["", "v", "1", "unknown", "1.x", "99999999999.1.1"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
