// Move the cursor of all charts, and show the picture of each camera that is nearest to the chosen time.
(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const slider = document.getElementById("time");
  const now = document.getElementById("now");
  const images = [...document.querySelectorAll("img[data-camera]")];
  const cursors = [...document.querySelectorAll("line.cursor")];

  function findNearest(times, at) {
    let low = 0;
    let high = times.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < at) low = middle + 1;
      else high = middle;
    }
    return low > 0 && at - times[low - 1] <= times[low] - at ? low - 1 : low;
  }

  function show() {
    const share = slider.value / slider.max;
    const at = share * data.seconds;
    now.textContent = `${at.toFixed(2)} s`;
    for (const line of cursors) {
      line.setAttribute("x1", share * data.width);
      line.setAttribute("x2", share * data.width);
    }
    for (const image of images) {
      const camera = data.cameras[image.dataset.camera];
      const url = camera.pictures[findNearest(camera.times, at)];
      if (image.src !== url) image.src = url;
    }
  }

  slider.addEventListener("input", show);
  show();
})();
