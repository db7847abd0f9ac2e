"use strict";
(() => {
  const form = document.getElementById("controls");
  const slider = form.elements.epsilon;
  const epsilons = slider.dataset.epsilons.split(" ");
  const choices = [...document.querySelectorAll(".choice")];
  const show = () => {
    const epsilon = epsilons[slider.value];
    const unit = form.elements.unit.value;
    slider.setAttribute("aria-valuetext", epsilon);
    document.getElementById("value").textContent = epsilon;
    for (const choice of choices) {
      choice.hidden = choice.dataset.epsilon !== epsilon || choice.dataset.unit !== unit;
      if (!choice.hidden) document.getElementById("said").textContent = choice.dataset.said;
    }
  };
  form.addEventListener("input", show);
  form.hidden = false;
  show();
})();
