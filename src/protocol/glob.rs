//! Patterns for paths: `*` and `?` within a name, `**` for any number of folders. A name that begins
//! with a dot is only matched by a pattern that begins with a dot, too.

/// Most characters of a pattern. Matching takes at most as many steps as the product of both lengths.
pub const PATTERN_CHARS: usize = 200;

/// Whether the pattern matches a relative path.
pub fn matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = parts(pattern).collect();
    let path: Vec<&str> = parts(path).collect();
    // `reached[n]`: the parts of the pattern so far match the first n names of the path.
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for part in pattern {
        let mut next = vec![false; path.len() + 1];
        for (index, name) in path.iter().enumerate() {
            if part == "**" {
                next[index] |= reached[index];
                next[index + 1] |= next[index] && !name.starts_with('.');
            } else {
                next[index + 1] |= reached[index] && name_matches(part, name);
            }
        }
        if part == "**" {
            next[path.len()] |= reached[path.len()];
        }
        reached = next;
    }
    reached[path.len()]
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split('/').filter(|part| !part.is_empty() && *part != ".")
}

fn name_matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let name: Vec<char> = name.chars().collect();
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for sign in pattern.chars() {
        let mut next = vec![false; name.len() + 1];
        if sign == '*' {
            let mut open = false;
            for (index, here) in reached.iter().enumerate() {
                open |= here;
                next[index] = open;
            }
        } else {
            for (index, char) in name.iter().enumerate() {
                next[index + 1] = reached[index] && (sign == '?' || sign == *char);
            }
        }
        reached = next;
    }
    reached[name.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_shells_mean() {
        for (pattern, path, expected) in [
            ("*.csv", "a.csv", true),
            ("*.csv", "out/a.csv", false),
            ("./*.csv", "a.csv", true),
            ("out/*", "out/a.csv", true),
            ("out/*", "out/b/a.csv", false),
            ("**/*.csv", "a.csv", true),
            ("**/*.csv", "x/y/a.csv", true),
            ("**", "x/y/z", true),
            ("x/**", "x/y/z", true),
            ("x/**", "y/z", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", ".env", false),
            (".*", ".env", true),
            (".env", ".env", true),
            ("**", ".git/config", false),
            ("**", "x/.git/config", false),
            (".git/**", ".git/config", true),
            ("*a*b*", "xxaxxbxx", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_path_is_its_own_pattern(path in "[a-z.]{1,4}(/[a-z.]{1,4}){0,3}") {
            proptest::prop_assert!(matches(&path, &path));
        }

        #[test]
        fn a_star_never_crosses_a_folder(name in "[a-z]{1,4}/[a-z]{1,4}") {
            proptest::prop_assert!(!matches("*", &name));
        }
    }
}
