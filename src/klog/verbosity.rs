//! Which lines are shown: `-v` and `--vmodule`, as klog and component-base read and apply them.

use std::str::FromStr;

use crate::goflag::{Quoted, ValueError};

/// A verbosity: how much detail a line is, or how much is shown. At most 2147483647, klog's `int32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u32);

/// Why a text is no [`Level`], in the words of Go's `strconv`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// Something else than decimal digits.
    #[error("strconv.ParseUint: parsing {}: invalid syntax", Quoted::new(.0))]
    Syntax(String),
    /// Above 2147483647.
    #[error("strconv.ParseUint: parsing {}: value out of range", Quoted::new(.0))]
    Range(String),
}

impl Level {
    /// The largest that klog's `int32` holds.
    const MAX: u32 = i32::MAX.unsigned_abs();

    /// A level of the program's own, which need not be checked.
    pub const fn new(level: u16) -> Self {
        Self(level as u32)
    }

    /// As a number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        match digits(text) {
            Ok(level) => Ok(Self(level)),
            Err(ValueError::Syntax) => Err(LevelError::Syntax(text.to_owned())),
            Err(ValueError::Range) => Err(LevelError::Range(text.to_owned())),
        }
    }
}

/// Go's `strconv.ParseUint(text, 10, 31)`, which stops at the first byte that is wrong.
fn digits(text: &str) -> Result<u32, ValueError> {
    if text.is_empty() {
        return Err(ValueError::Syntax);
    }
    text.chars().try_fold(0_u32, |level, digit| {
        let digit = digit.to_digit(10).ok_or(ValueError::Syntax)?;
        level
            .checked_mul(10)
            .and_then(|shifted| shifted.checked_add(digit))
            .filter(|level| *level <= Level::MAX)
            .ok_or(ValueError::Range)
    })
}

/// Source files by the base name without its suffix, and the verbosity there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    glob: String,
    level: Level,
}

/// One value of `--vmodule`: `file=N,...`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VModule(Vec<Pattern>);

/// Why a text is no [`VModule`], in the words of component-base.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VModuleError {
    /// No `=`, more than one, or nothing on one side.
    #[error("{} does not have the pattern=N format", Quoted::new(.0))]
    Format(String),
    /// What follows the `=` is no level.
    #[error("parsing verbosity in {}: {reason}", Quoted::new(.item))]
    Level {
        /// The whole item.
        item: String,
        /// Why.
        reason: LevelError,
    },
}

impl VModule {
    /// Whether it names no file at all.
    #[cfg(feature = "registrar")]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for VModule {
    type Err = VModuleError;

    fn from_str(text: &str) -> Result<Self, VModuleError> {
        let items = text.split(',').filter(|item| !item.is_empty());
        let pattern = |item: &str| {
            let (glob, level) = item
                .split_once('=')
                .filter(|(glob, level)| {
                    !glob.is_empty() && !level.is_empty() && !level.contains('=')
                })
                .ok_or_else(|| VModuleError::Format(item.to_owned()))?;
            let level = level.parse().map_err(|reason| VModuleError::Level {
                item: item.to_owned(),
                reason,
            })?;
            Ok(Pattern {
                glob: glob.to_owned(),
                level,
            })
        };
        items.map(pattern).collect::<Result<_, _>>().map(Self)
    }
}

/// What is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verbosity {
    level: Level,
    patterns: Vec<Pattern>,
}

impl Verbosity {
    /// Everything up to `level`, and in the files of `modules` up to theirs.
    pub fn new(level: Level, modules: impl IntoIterator<Item = VModule>) -> Self {
        let patterns = modules.into_iter().flat_map(|module| module.0);
        Self {
            level,
            // As in klog, where 0 is no override but nothing.
            patterns: patterns
                .filter(|pattern| pattern.level > Level(0))
                .collect(),
        }
    }

    /// Whether a line of `level` in `path` is shown. The first pattern that matches the file decides, and can only add.
    pub(super) fn shows(&self, level: Level, path: Option<&str>) -> bool {
        level <= self.level || path.is_some_and(|path| level <= self.level_of(path))
    }

    fn level_of(&self, path: &str) -> Level {
        let file = path.rsplit('/').next().unwrap_or(path);
        let file = file.strip_suffix(".rs").unwrap_or(file);
        let first = self
            .patterns
            .iter()
            .find(|pattern| matches(&pattern.glob, file));
        first.map_or(Level(0), |pattern| pattern.level)
    }
}

/// Go's `filepath.Match` for names without slashes: `*`, `?`, `[a-z]`, `[^a-z]`, `\c`. A malformed pattern matches nothing.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Behind the last star, and where in the name it was tried.
    let mut star: Option<(&str, &str)> = None;
    loop {
        if let Some(behind) = pattern.strip_prefix('*') {
            star = Some((behind, name));
            pattern = behind;
        } else if pattern.is_empty() && name.is_empty() {
            return true;
        } else if let Some(next) = advance(pattern, name) {
            (pattern, name) = next;
        } else {
            // The star takes one character more.
            let Some((behind, tried)) = star else {
                return false;
            };
            let Some((_, later)) = split_first(tried) else {
                return false;
            };
            star = Some((behind, later));
            (pattern, name) = (behind, later);
        }
    }
}

/// What is left of both when the first character of `name` matches.
fn advance<'p, 'n>(pattern: &'p str, name: &'n str) -> Option<(&'p str, &'n str)> {
    let (c, name) = split_first(name)?;
    let (matched, pattern) = matches_one(pattern, c)?;
    matched.then_some((pattern, name))
}

fn split_first(text: &str) -> Option<(char, &str)> {
    let mut rest = text.chars();
    Some((rest.next()?, rest.as_str()))
}

/// Whether `c` is what `pattern` starts with, and what of the pattern follows. `None` if it is empty or malformed.
fn matches_one(pattern: &str, c: char) -> Option<(bool, &str)> {
    match split_first(pattern)? {
        ('?', rest) => Some((true, rest)),
        ('[', class) => matches_class(class, c),
        ('\\', rest) => split_first(rest).map(|(literal, rest)| (literal == c, rest)),
        (literal, rest) => Some((literal == c, rest)),
    }
}

/// Behind a `[`.
fn matches_class(class: &str, c: char) -> Option<(bool, &str)> {
    let (negated, mut class) = match class.strip_prefix('^') {
        Some(class) => (true, class),
        None => (false, class),
    };
    let mut matched = false;
    loop {
        let (low, rest) = class_member(class)?;
        let (high, rest) = match rest.strip_prefix('-') {
            Some(rest) => class_member(rest)?,
            None => (low, rest),
        };
        matched |= (low..=high).contains(&c);
        class = rest;
        if let Some(rest) = class.strip_prefix(']') {
            return Some((matched != negated, rest));
        }
    }
}

fn class_member(class: &str) -> Option<(char, &str)> {
    match split_first(class)? {
        ('-' | ']', _) => None,
        ('\\', rest) => split_first(rest),
        member => Some(member),
    }
}

#[cfg(test)]
mod tests;
