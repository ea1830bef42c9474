/** Light and dark colours: those of the system, unless the user has chosen. */
const CHOICES = ["auto", "light", "dark"];

function readChoice() {
  try {
    const choice = localStorage.getItem("theme");
    return CHOICES.includes(choice) ? choice : "auto";
  } catch {
    return "auto"; // storage is disabled
  }
}

function apply(choice, button) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  button.textContent = `Colours: ${choice}`;
  button.title = "Colours: as the system, light or dark (key t)";
  document.dispatchEvent(new Event("themechange"));
}

/** Make a button switch between the colours of the system, light and dark; the choice is kept. */
export function installThemeSwitch(button) {
  let choice = readChoice();
  apply(choice, button);
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem("theme", choice);
    } catch {
      // Storage is disabled: the choice lasts until the page is closed.
    }
    apply(choice, button);
  });
}

/** Return the CSS value of the colour of a series: colours repeat after eight. */
export function seriesColour(index) {
  return `var(--c${index % 8})`;
}
