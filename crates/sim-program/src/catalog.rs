//! The scenarios that come with braid: the files of `scenarios/`, built in.
use super::scenario::{self, Scenario};
use serde_json::{Value, json};
use terminal::exit::Usage;

/// One file.
pub struct Story {
    /// Its name, without `.toml`.
    pub name: &'static str,
    text: &'static str,
}

macro_rules! stories {
    ($($name:literal),* $(,)?) => {
        /// All of them, in the order in which they are shown.
        pub const STORIES: &[Story] = &[$(Story {
            name: $name,
            text: include_str!(concat!("../../../scenarios/", $name, ".toml")),
        }),*];
    };
}

stories![
    "sym",
    "d30",
    "congest",
    "mixrw",
    "sizedep",
    "two-hosts",
    "twice",
    "change",
    "het",
    "ana",
    "shared",
    "open",
    "htail",
    "cores",
    "cpu",
    "mirror",
    "ta1",
    "ta2",
    "ta3",
    "ta4",
    "ta5",
    "ta6",
    "ta7",
    "ta8",
    "ta9",
    "tb",
];

impl Story {
    /// Its scenarios.
    ///
    /// # Errors
    /// None that a test would let through.
    pub fn scenarios(&self) -> anyhow::Result<Vec<Scenario>> {
        scenario::parse(self.name, self.text)
    }

    /// Whether a scenario is one of its own.
    pub fn holds(&self, scenario: &str) -> bool {
        let own = self.scenarios();
        own.is_ok_and(|own| own.iter().any(|it| it.name == scenario))
    }
}

/// Every scenario.
///
/// # Errors
/// As [`Story::scenarios`].
pub fn all() -> anyhow::Result<Vec<Scenario>> {
    let mut all = Vec::new();
    for story in STORIES {
        all.extend(story.scenarios()?);
    }
    Ok(all)
}

/// The scenario of this name, or all of a story.
///
/// # Errors
/// There is none: usage.
pub fn find(name: &str) -> anyhow::Result<Vec<Scenario>> {
    if let Some(story) = STORIES.iter().find(|story| story.name == name) {
        return story.scenarios();
    }
    let found: Vec<Scenario> = all()?.into_iter().filter(|it| it.name == name).collect();
    if found.is_empty() {
        let text = format!(
            "no scenario or story {name:?}; `braid sim` alone lists them, and a file's name ends \
             in .toml"
        );
        return Err(Usage::error(text));
    }
    Ok(found)
}

/// Lists the scenarios.
///
/// # Errors
/// As [`Story::scenarios`].
pub fn list() -> anyhow::Result<String> {
    let mut text = String::new();
    for story in STORIES {
        text.push_str(&format!("{}\n", story.name));
        for scenario in story.scenarios()? {
            text.push_str(&format!("  {:18} {}\n", scenario.name, scenario.title));
        }
    }
    text.push_str(
        "train:N, validation:N, test:N, wide@SEED:N\n  N random worlds of each family; train-7 is \
         one of them\n",
    );
    Ok(text)
}

/// As [`list`], in JSON.
///
/// # Errors
/// As [`Story::scenarios`].
pub fn json() -> anyhow::Result<Value> {
    let mut stories = Vec::new();
    for story in STORIES {
        let scenarios = story.scenarios()?;
        let scenarios = scenarios.iter();
        let line = |it: &Scenario| json!({ "name": it.name, "title": it.title });
        let scenarios: Vec<Value> = scenarios.map(line).collect();
        stories.push(json!({ "name": story.name, "scenarios": scenarios }));
    }
    Ok(json!({ "stories": stories, "families": ["train", "validation", "test", "wide@SEED"] }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_is_a_world_and_has_a_name_of_its_own() {
        let all = all().unwrap();
        let names: BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() > 60, "{}", all.len());
    }

    /// The tables say which pairs of policies compare differently than in their document.
    #[test]
    fn differences_to_the_documents_are_explained() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
        let mut compared = 0;
        for story in STORIES {
            let text = std::fs::read_to_string(format!("{folder}/{}.txt", story.name)).unwrap();
            for wrong in ["not explained", "though nothing differs"] {
                assert!(!text.contains(wrong), "{}: {wrong}", story.name);
            }
            compared += text.matches("beside the document").count();
        }
        assert!(compared >= 30, "{compared}");
    }

    #[test]
    fn every_file_of_the_folder_is_built_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(stem) = name.strip_suffix(".toml") {
                assert!(
                    STORIES.iter().any(|story| story.name == stem),
                    "{name} is not in STORIES"
                );
            }
        }
    }
}
