// The page says everything without this. It shows the line of what is pointed at or focused, moves
// the focus through the map by arrows, and opens what is folded before it is printed.
(() => {
  const readout = document.getElementById('readout');
  const cells = [...document.querySelectorAll('.cell')];
  const dots = [...document.querySelectorAll('.dot[data-place]')];
  const cellOf = new Map(cells.map((cell) => [cell.dataset.place, cell]));

  const show = (text) => {
    if (readout && text) readout.textContent = text;
  };
  for (const cell of cells) {
    const line = cell.getAttribute('aria-label');
    cell.addEventListener('pointerenter', () => show(line));
    cell.addEventListener('focus', () => show(line));
  }
  for (const dot of dots) {
    const cell = cellOf.get(dot.dataset.place);
    if (!cell) continue;
    dot.addEventListener('pointerenter', () => {
      show(cell.getAttribute('aria-label'));
      cell.classList.add('lit');
    });
    dot.addEventListener('pointerleave', () => cell.classList.remove('lit'));
  }

  // One stop of the Tab key for the whole map; arrows go on from there.
  const grid = [...document.querySelectorAll('.map tbody tr')].map(
      (row) => [...row.querySelectorAll('td')].map((td) => td.querySelector('.cell')));
  const inside = grid.flat().filter(Boolean);
  const stop = (cell) => {
    for (const other of inside) other.tabIndex = other === cell ? 0 : -1;
  };
  if (inside.length) stop(inside.find((cell) => cell.classList.contains('first')) || inside[0]);
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  for (const cell of inside)
    cell.addEventListener('keydown', (event) => {
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      let row = grid.findIndex((line) => line.includes(cell));
      let column = grid[row].indexOf(cell);
      for (;;) {
        row += step[0];
        column += step[1];
        if (!grid[row] || column < 0 || column >= grid[row].length) return;
        if (grid[row][column]) break;
      }
      stop(grid[row][column]);
      grid[row][column].focus();
    });

  // A link into the table of places opens it.
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const folded = target && target.closest('details');
    if (folded && !folded.open) {
      folded.open = true;
      target.scrollIntoView({block: 'center'});
    }
  };
  addEventListener('hashchange', open);
  open();
  addEventListener('beforeprint', () => {
    for (const folded of document.querySelectorAll('details')) folded.open = true;
  });
})();
