"use strict";
(() => {
  const root = document.documentElement;

  // Theme: the system's until the reader chooses another.
  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const remember = (name) => { try { localStorage.setItem("comastre-theme", name); } catch { /* a file without storage */ } };
  const recall = () => { try { return localStorage.getItem("comastre-theme"); } catch { return null; } };
  const use = (name) => {
    if (name === "system") delete root.dataset.theme; else root.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.dataset.now = name;
  };
  button.hidden = false;
  use(themes.includes(recall()) ? recall() : "system");
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.now) + 1) % themes.length];
    use(next);
    remember(next);
  });

  // The slider over the steps: shows what belongs to a step, hides the rest.
  const show = (section, step) => {
    for (const part of section.querySelectorAll("[data-step]")) part.hidden = Number(part.dataset.step) !== step;
    for (const chip of section.querySelectorAll("[data-from]")) chip.classList.toggle("later", Number(chip.dataset.from) > step);
  };
  for (const slider of document.querySelectorAll("input.step")) {
    const section = slider.closest("section");
    const move = () => show(section, Number(slider.value));
    slider.addEventListener("input", move);
    move();
  }

  // Tips: of marked elements, and in pictures the class under the pointer.
  const tip = document.getElementById("tip");
  const place = (event) => {
    const margin = 12;
    const box = tip.getBoundingClientRect();
    const width = root.clientWidth;
    let left = Math.min(event.clientX + margin, width - box.width - 6);
    let top = event.clientY + margin;
    if (top + box.height > window.innerHeight - 6) top = event.clientY - box.height - margin;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, top)}px`;
  };
  const say = (text, event) => {
    tip.hidden = !text;
    if (text) { tip.textContent = text; place(event); }
  };

  const pixels = new WeakMap();
  const names = new WeakMap();
  const read = (image) => {
    if (!pixels.has(image)) {
      const canvas = document.createElement("canvas");
      canvas.width = image.naturalWidth;
      canvas.height = image.naturalHeight;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      pixels.set(image, context);
    }
    return pixels.get(image);
  };
  const named = (section) => {
    if (!names.has(section)) {
      const found = new Map();
      for (const chip of section.querySelectorAll(".chips li")) {
        const swatch = chip.querySelector(".swatch");
        if (swatch) found.set(swatch.style.backgroundColor.replace(/\s/g, ""), chip.textContent.trim());
      }
      names.set(section, found);
    }
    return names.get(section);
  };
  const under = (image, event) => {
    const box = image.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / box.width * image.naturalWidth);
    const y = Math.floor((event.clientY - box.top) / box.height * image.naturalHeight);
    if (x < 0 || y < 0 || x >= image.naturalWidth || y >= image.naturalHeight) return "";
    const [red, green, blue, opaque] = read(image).getImageData(x, y, 1, 1).data;
    if (opaque === 0) return "background";
    if (opaque < 255) return "ignored";
    return named(image.closest("section")).get(`rgb(${red},${green},${blue})`) || "another class";
  };
  document.addEventListener("pointermove", (event) => {
    if (!(event.target instanceof Element)) return;
    const image = event.target.closest("img.labels");
    if (image) { const found = under(image, event); say(found && `${image.dataset.who}: ${found}`, event); return; }
    const marked = event.target.closest("[data-tip]");
    say(marked ? marked.dataset.tip : "", event);
  });
  document.addEventListener("pointerleave", () => { tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });
})();
